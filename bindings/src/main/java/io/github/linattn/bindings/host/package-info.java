/** What native code tells of the memory of the JVM itself. */
@NullMarked
package io.github.linattn.bindings.host;

import org.jspecify.annotations.NullMarked;
