/**
 * What a failed CUDA call looks like to an application.
 *
 * <p>Callers: everybody. Threads: the exceptions are immutable, apart from what every {@link
 * Throwable} lets one change.
 */
@NullMarked
package io.github.linattn.cuda;

import org.jspecify.annotations.NullMarked;
