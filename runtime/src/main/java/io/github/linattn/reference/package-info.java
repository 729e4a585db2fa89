/**
 * The operator in double precision, as plainly as it can be written. For checks by tests, the
 * command line and applications. Stateless and thread-safe.
 */
@NullMarked
package io.github.linattn.reference;

import org.jspecify.annotations.NullMarked;
