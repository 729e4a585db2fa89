/**
 * What benchmarks have measured, as it stands in a file: points, the runs that took them, JSON and
 * CSV. Knows nothing of how a point is measured or drawn; not for several threads at once.
 */
@NullMarked
package io.github.linattn.cli.points;

import org.jspecify.annotations.NullMarked;
