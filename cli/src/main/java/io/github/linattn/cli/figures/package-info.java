/**
 * Pictures of points, made from the points alone: which figures there are, and how one is drawn.
 * Called by the commands; not for several threads at once.
 */
@NullMarked
package io.github.linattn.cli.figures;

import org.jspecify.annotations.NullMarked;
