/**
 * Contracts between the public API and the engines, and memory. Called by the API and by engines of
 * this module only. Thread-safe unless a type says otherwise.
 */
@NullMarked
package io.github.linattn.internal;

import org.jspecify.annotations.NullMarked;
