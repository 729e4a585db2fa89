/**
 * What every backend must do. An abstract class states a contract; its two subclasses hold the CPU
 * and a GPU to it. Called by JUnit alone, one class at a time.
 */
@NullMarked
package io.github.linattn.test.contract;

import org.jspecify.annotations.NullMarked;
