/**
 * How files are written, and how their failures are told, here and on the command line; exported to
 * that alone. Stateless.
 */
@NullMarked
package io.github.linattn.files;

import org.jspecify.annotations.NullMarked;
