package io.github.linattn.internal.cpu;

import io.github.linattn.AttentionInput;
import io.github.linattn.AttentionShape;
import io.github.linattn.AttentionState;
import io.github.linattn.Sequences;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Objects;
import java.util.function.BiFunction;
import java.util.function.Supplier;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * A lane cut into segments, so that few heads still keep all threads busy. A sweep over a segment
 * starts from the sums over the segments before it, which a pass of their own finds first. A lane
 * of one segment is swept in steps, between which it may go from one thread to another.
 */
final class Segments {
  /** A shorter segment spends more on finding its start than it gains. */
  private static final int MIN_TOKENS = 8 * Tiles.CHUNK;

  /**
   * A shorter step spends more on the way of its state to another thread's caches than it gains.
   */
  private static final int MIN_STEP_TOKENS = 4 * Tiles.CHUNK;

  private static final int MOST_STEPS = 8;

  /** Tokens [start, end) of a lane. */
  record Segment(Lane lane, int start, int end) {
    int length() {
      return end - start;
    }

    /** One past the last of the next {@code tokens} tokens, or of those that are left. */
    int endOf(int token, int tokens) {
      return token + Math.min(tokens, end - token);
    }

    boolean isFirst() {
      return start == lane.start();
    }

    boolean isLast() {
      return end == lane.end();
    }
  }

  /** Which sums a sweep starts from. */
  enum Start {
    /** Those over the earlier segments of the lane. */
    BEFORE,
    /** Those over the later segments of the lane. */
    AFTER,
    /** Those over the whole lane. */
    WHOLE
  }

  private final Parallel parallel;
  private final List<Segment> segments;

  private Segments(Parallel parallel, List<Segment> segments) {
    this.parallel = parallel;
    this.segments = segments;
  }

  /**
   * Runs {@code pass} once for each lane of a call, several at a time. A thread takes most lanes
   * through all sweeps, so that the second finds in its caches what the first has read, and sums
   * take memory by the thread and not by the head or sequence.
   *
   * @param sweeps that the work on a lane makes, each but the first beginning in the last step of
   *     the one before
   * @param pass is given the number of the lane too, which tells batch, then head, then sequence
   */
  static void forEachLane(AttentionInput input, Parallel parallel, int sweeps, LanePass pass) {
    List<Lane> lanes = lanes(input);
    List<LaneCourse> courses = new ArrayList<>();
    for (Lane lane : lanes) {
      int parts = perLane(lanes.size(), lane.length(), parallel.threads());
      Segments segments = new Segments(parallel, cut(lane, parts));
      courses.add(new LaneCourse(courses.size(), segments, sweeps, pass));
    }
    parallel.finish(courses);
  }

  /** All that a call does with one lane. */
  interface LanePass {
    /** Before the first step, on the thread that does it. */
    LaneWork begin(int index, Segments lane, Scratch scratch);
  }

  /** What is left of it. */
  interface LaneWork {
    void step(int index, Scratch scratch);
  }

  private static final class LaneCourse implements Parallel.Course {
    private final int index;
    private final Segments lane;
    private final LanePass pass;
    private final int steps;
    private int done;
    private @Nullable LaneWork work;

    LaneCourse(int index, Segments lane, int sweeps, LanePass pass) {
      this.index = index;
      this.lane = lane;
      this.pass = pass;
      this.steps = sweeps * (lane.steps() - 1) + 1;
    }

    @Override
    public long left() {
      return (long) (steps - done) * lane.stepTokens();
    }

    @Override
    public void step(Scratch scratch) {
      LaneWork begun = work == null ? pass.begin(index, lane, scratch) : work;
      begun.step(done, scratch);
      done++;
      work = done < steps ? begun : null;
    }
  }

  static int laneCount(AttentionInput input) {
    return input.shape().batch() * input.shape().keyValueHeads() * input.sequences().count();
  }

  private static List<Lane> lanes(AttentionInput input) {
    AttentionShape shape = input.shape();
    Sequences sequences = input.sequences();
    @Nullable AttentionState initial = input.initialState().orElse(null);
    List<Lane> lanes = new ArrayList<>();
    for (int batch = 0; batch < shape.batch(); batch++) {
      for (int head = 0; head < shape.keyValueHeads(); head++) {
        for (int i = 0; i < sequences.count(); i++) {
          int start = sequences.start(i);
          long before = initial == null ? 0 : initial.count(i);
          lanes.add(new Lane(batch, head, i, start, start + sequences.length(i), before));
        }
      }
    }
    return lanes;
  }

  /** Segments of a lane of {@code tokens} tokens. */
  static int perLane(int lanes, int tokens, int threads) {
    long wanted = lanes >= threads ? 1 : Math.ceilDiv(2L * threads, lanes);
    return Math.clamp(wanted, 1, Math.max(1, tokens / MIN_TOKENS));
  }

  static List<Segment> cut(Lane lane, int parts) {
    List<Segment> segments = new ArrayList<>();
    long chunks = Math.ceilDiv(lane.length(), Tiles.CHUNK);
    int start = lane.start();
    for (int part = 1; part <= parts; part++) {
      int end = (int) Math.min(lane.start() + chunks * part / parts * Tiles.CHUNK, lane.end());
      segments.add(new Segment(lane, start, end));
      start = end;
    }
    return segments;
  }

  int count() {
    return segments.size();
  }

  Lane lane() {
    return segments.getFirst().lane();
  }

  Segment get(int index) {
    return segments.get(index);
  }

  /** Steps of a sweep. */
  int steps() {
    return Math.max(1, Math.ceilDiv(lane().length(), stepTokens()));
  }

  /** Tokens of each segment that a step takes, whole chunks; the last one may take fewer. */
  int stepTokens() {
    int tokens = lane().length();
    if (count() > 1) {
      return tokens;
    }
    int most = Math.clamp(tokens / MIN_STEP_TOKENS, 1, MOST_STEPS);
    return Math.max(1, Tiles.roundUp(Math.ceilDiv(tokens, most), Tiles.CHUNK));
  }

  /**
   * @param scratch of the caller, which runs a single segment's task itself
   */
  void forEach(Scratch scratch, Parallel.Task task) {
    runAll(segments.size(), scratch, task);
  }

  private void runAll(int count, Scratch scratch, Parallel.Task task) {
    if (count == 1) {
      scratch.clear();
      task.run(0, scratch);
    } else {
      parallel.forEach(count, task);
    }
  }

  /**
   * The sums from which the sweep over each segment starts; {@code initial} gives those that the
   * lane starts from. Those of {@link Start#WHOLE} are shared by the segments and are not to be
   * changed; the others belong to their segment.
   */
  List<OuterSum> starts(
      Start start,
      Supplier<OuterSum> initial,
      Scratch scratch,
      BiFunction<Segment, Scratch, OuterSum> sumOver) {
    @Nullable OuterSum[] parts = new OuterSum[count()];
    int[] needed =
        IntStream.range(0, count()).filter(i -> needsPart(start, segments.get(i))).toArray();
    runAll(
        needed.length,
        scratch,
        (i, free) -> parts[needed[i]] = sumOver.apply(segments.get(needed[i]), free));
    @Nullable OuterSum[] starts = new OuterSum[count()];
    int step = start == Start.AFTER ? -1 : 1;
    for (int i = step > 0 ? 0 : count() - 1; i >= 0 && i < count(); i += step) {
      Segment segment = segments.get(i);
      boolean opensLane = step > 0 ? segment.isFirst() : segment.isLast();
      OuterSum sum;
      if (opensLane) {
        sum = initial.get();
      } else {
        OuterSum before = Objects.requireNonNull(starts[i - step]);
        sum = start == Start.WHOLE ? before : before.copy();
        sum.add(Objects.requireNonNull(parts[i - step]));
      }
      if (start == Start.WHOLE && segment.isLast()) {
        sum.add(Objects.requireNonNull(parts[i]));
      }
      starts[i] = sum;
    }
    return Arrays.stream(starts).map(Objects::requireNonNull).toList();
  }

  private static boolean needsPart(Start start, Segment segment) {
    return switch (start) {
      case BEFORE -> !segment.isLast();
      case AFTER -> !segment.isFirst();
      case WHOLE -> true;
    };
  }
}
