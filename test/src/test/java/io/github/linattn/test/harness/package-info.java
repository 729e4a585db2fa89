/**
 * What the tests share: problems with seeded inputs, guarded buffers, the tolerance table and the
 * backends under test. Used by the test packages beside it; each object by one thread.
 */
@NullMarked
package io.github.linattn.test.harness;

import org.jspecify.annotations.NullMarked;
