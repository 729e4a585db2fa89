/** What the modules may use of each other and of the JDK. Called by JUnit alone; one thread. */
@NullMarked
package io.github.linattn.test.build;

import org.jspecify.annotations.NullMarked;
