package io.github.linattn.test.harness;

import java.lang.annotation.ElementType;
import java.lang.annotation.Retention;
import java.lang.annotation.RetentionPolicy;
import java.lang.annotation.Target;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.ExtendWith;

/**
 * Marks tests that run on a GPU. Without a usable one they are skipped, which reports show as
 * skipped, and one line says why; with {@code -Dlinattn.gpu=required} they fail instead.
 */
@Tag("gpu")
@ExtendWith(GpuCondition.class)
@Target(ElementType.TYPE)
@Retention(RetentionPolicy.RUNTIME)
public @interface GpuTest {}
