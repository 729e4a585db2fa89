package io.github.linattn.cli.points;

/**
 * A point with the run that found it out.
 *
 * @param run where, when and with what
 */
public record Measured(Point point, Run run) {}
