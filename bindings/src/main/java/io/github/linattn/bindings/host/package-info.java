/** What native code tells of the memory of the JVM, and what it asks of memory for its speed. */
@NullMarked
package io.github.linattn.bindings.host;

import org.jspecify.annotations.NullMarked;
