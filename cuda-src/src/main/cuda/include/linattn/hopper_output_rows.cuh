// Rows of x on their way to products with a state: copies to a warp's own stages, and operands of what has come.
#pragma once

#include "linattn/hopper.cuh"
#include "linattn/state_outputs.cuh"

namespace linattn {
namespace hopper {

// Takes the next part off two values, and returns it.
template <typename Half>
__device__ __forceinline__ uint32_t next_part(float2& rest) {
  const uint32_t pair = pack<Half>(rest.x, rest.y);
  const float2 part = unpack<Half>(pair);
  rest = make_float2(rest.x - part.x, rest.y - part.y);
  return pair;
}

// The size of an element that others are scaled by: one that is not finite spoils its own column alone.
__device__ __forceinline__ float finite_size(float x) { return fabsf(x) < INFINITY ? fabsf(x) : 0.0f; }

// A power of two that brings `largest` to what fp16 holds, with room for its neighbours.
__device__ __forceinline__ float half_scale_for(float largest) { return fminf(scale_for(largest), 0x1p112f) * 0x1p14f; }

// The rows of a tensor that a warp walks, 16 of each chunk of its warpgroup, box by box. Lanes copy units of 16 bytes,
// neighbours of a row.
template <class Plan>
struct RowCursor {
  using Element = typename Plan::Element;
  static constexpr int kUnitColumns = kUnitBytes / static_cast<int>(sizeof(Element));
  static constexpr int kLanesOfRow = Plan::kBoxColumns / kUnitColumns;
  static constexpr int kRows = kWarp / kLanesOfRow;  // that are copied at once

  int64_t token_stride;
  int rows_left;  // from this lane's first one of the next box on
  int num_columns;
  int lane;
  const Element* rows_gmem;
  const Element* next_gmem;  // of this lane: its first unit of the next box
  int next_column;           // of that unit

  __device__ __forceinline__ RowCursor(const RowSource<Element>& source, const Item& item, int first_row)
      : token_stride(source.token_stride),
        num_columns(source.num_columns),
        lane(lane_of_thread()),
        rows_gmem(source.rows_gmem) {
    const int row = first_row + lane / kLanesOfRow;
    rows_left = item.tokens - row;
    next_column = lane % kLanesOfRow * kUnitColumns;
    next_gmem = rows_gmem + row * token_stride + next_column;
  }

  // Of a unit of a row in a stage: such that the eight, or two, rows that lanes read at once want different banks.
  __device__ __forceinline__ static uint32_t place(int row, int unit) {
    const int swizzle = sizeof(Element) == 2 ? row % 8 : row % 2 * 4;
    return static_cast<uint32_t>(row * Plan::kRowBytes + (unit ^ swizzle) * kUnitBytes);
  }

  // Brings the next box to a stage, zeros past the last row and the last column; whether it was the last of its chunk.
  __device__ __forceinline__ bool copy_next(uint32_t stage) {
    const int num_rows = next_column < num_columns ? rows_left : 0;
#pragma unroll
    for (int i = 0; i < Plan::kWarpTokens / kRows; ++i) {
      const bool valid = i * kRows < num_rows;
      copy_async_part(stage + place(lane / kLanesOfRow + i * kRows, lane % kLanesOfRow),
                      valid ? next_gmem + i * kRows * token_stride : rows_gmem, valid ? kUnitBytes : 0);
    }
    commit_copies();
    next_gmem += Plan::kBoxColumns;
    next_column += Plan::kBoxColumns;
    const int past = ceil_div(num_columns, Plan::kBoxColumns) * Plan::kBoxColumns;
    if (next_column < past) {
      return false;
    }
    next_column -= past;
    next_gmem += Plan::tokens_at_once() * token_stride - past;
    rows_left -= Plan::tokens_at_once();
    return true;
  }
};

// The stages of a warp, and the operands of a box in one of them.
template <class Plan>
struct RowsOnTheirWay {
  using Element = typename Plan::Element;
  using Cursor = RowCursor<Plan>;

  uint32_t stages;
  int next_stage = 0;
  int stage_idx = 0;

  __device__ __forceinline__ explicit RowsOnTheirWay(uint32_t of_warp) : stages(of_warp) {}

  // Of the oldest box, and of the next one.
  __device__ __forceinline__ uint32_t stage() const { return stages + stage_idx * Plan::kStageBytes; }
  __device__ __forceinline__ uint32_t second_stage() const { return stages + after(stage_idx) * Plan::kStageBytes; }

  // The next box comes to the next stage, which nobody reads any more; as RowCursor::copy_next.
  __device__ __forceinline__ bool start(Cursor& cursor) {
    const uint32_t target = stages + next_stage * Plan::kStageBytes;
    next_stage = after(next_stage);
    return cursor.copy_next(target);
  }

  // The oldest box is wanted no more.
  __device__ __forceinline__ void release() { stage_idx = after(stage_idx); }

  // The operands of a box, of each step of 16 columns, and what takes the scales of a lane's two rows off their products; adds
  // the squares of its shares of these rows where they are wanted.
  __device__ __forceinline__ void load(uint32_t (&rows_frag)[Plan::kParts][Plan::kSteps][4], float (&inverses)[2], bool wants_squares,
                                       float (&squares)[2]) const {
    const int lane = lane_of_thread();
    if constexpr (sizeof(Element) == 2) {
#pragma unroll
      for (int step = 0; step < Plan::kSteps; ++step) {
        load_matrices(stage() + Cursor::place(lane % 16, step * 2 + lane / 16), rows_frag[0][step]);
      }
      if (wants_squares) {
        add_squares(rows_frag[0], squares);
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 units_frag[Plan::kSteps];
#pragma unroll
        for (int step = 0; step < Plan::kSteps; ++step) {
          const uint4 unit = load_unit(stage() + Cursor::place(lane / 4 + half * 8, step * 4 + lane % 4));
          units_frag[step] = make_float4(__uint_as_float(unit.x), __uint_as_float(unit.y), __uint_as_float(unit.z),
                                         __uint_as_float(unit.w));
        }
        if (wants_squares) {
          add_squares(units_frag, squares[half]);
        }
        if constexpr (Plan::kScalesRows) {
          inverses[half] = scale(units_frag);
        }
#pragma unroll
        for (int step = 0; step < Plan::kSteps; ++step) {
          set(rows_frag, step, half, make_float2(units_frag[step].x, units_frag[step].y));
          set(rows_frag, step, half + 2, make_float2(units_frag[step].z, units_frag[step].w));
        }
      }
    }
  }

 private:
  __device__ __forceinline__ static void add_squares(const uint32_t (&rows_frag)[Plan::kSteps][4],
                                                     float (&squares)[2]) {
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpack<typename Plan::Half>(rows_frag[step][i]);
        squares[i % 2] = fmaf(pair.x, pair.x, fmaf(pair.y, pair.y, squares[i % 2]));
      }
    }
  }

  // Of fp32 before it is split.
  __device__ __forceinline__ static void add_squares(const float4 (&units_frag)[Plan::kSteps], float& squares) {
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      const float4& unit = units_frag[step];
      squares = fmaf(unit.x, unit.x, fmaf(unit.y, unit.y, fmaf(unit.z, unit.z, fmaf(unit.w, unit.w, squares))));
    }
  }

  __device__ __forceinline__ static int after(int stage) { return stage + 1 == Plan::kStages ? 0 : stage + 1; }

  // Brings the largest element of a row, which four lanes have, to what fp16 holds; returns what takes it back.
  __device__ __forceinline__ static float scale(float4 (&units_frag)[Plan::kSteps]) {
    float largest = 0.0f;
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      const float4& unit = units_frag[step];
      largest = fmaxf(largest, fmaxf(fmaxf(fabsf(unit.x), fabsf(unit.y)), fmaxf(fabsf(unit.z), fabsf(unit.w))));
    }
    const float factor = fminf(half_scale_for(max_lanes<4>(largest)), 0x1p111f);
#pragma unroll
    for (int step = 0; step < Plan::kSteps; ++step) {
      float4& unit = units_frag[step];
      unit = make_float4(unit.x * factor, unit.y * factor, unit.z * factor, unit.w * factor);
    }
    return 1.0f / (Plan::kSharedScale * factor);
  }

  __device__ __forceinline__ static void set(uint32_t (&rows_frag)[Plan::kParts][Plan::kSteps][4], int step, int i,
                                             float2 pair) {
#pragma unroll
    for (int part = 0; part < Plan::kParts; ++part) {
      rows_frag[part][step][i] = next_part<typename Plan::Half>(pair);
    }
  }
};

// The boxes of a chunk in the order in which they are wanted: those of x, each with that of the rows that x is multiplied by, if
// there are such, and then those of the rows whose gradients outputs are, where these are to be finished.
template <class Plan, bool kDots>
struct BoxOrder {
  using Cursor = RowCursor<Plan>;
  enum Next { kX, kOthers, kLastOthers, kOwn };

  Cursor x;
  Cursor others;
  Cursor own;
  Next next = kX;

  template <class Way>
  __device__ __forceinline__ void start(Way& way) {
    if (next == kX) {
      const bool is_last = way.start(x) && Plan::kFinishes;
      next = kDots ? (is_last ? kLastOthers : kOthers) : is_last ? kOwn : kX;
    } else if (next == kOwn) {
      next = way.start(own) ? kX : kOwn;
    } else {
      way.start(others);
      next = next == kLastOthers ? kOwn : kX;
    }
  }
};

// Adds the products of the elements of a lane's shares of its two rows, which stand in `stage`, and of those in another.
template <class Plan>
__device__ __forceinline__ void add_dots(uint32_t stage, uint32_t other_stage, float (&dots)[2]) {
  using Cursor = RowCursor<Plan>;
  const int lane = lane_of_thread();
#pragma unroll
  for (int step = 0; step < Plan::kSteps; ++step) {
    if constexpr (sizeof(typename Plan::Element) == 2) {
      const uint32_t place = Cursor::place(lane % 16, step * 2 + lane / 16);
      uint32_t pairs_frag[4];
      uint32_t others_frag[4];
      load_matrices(stage + place, pairs_frag);
      load_matrices(other_stage + place, others_frag);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 x = unpack<typename Plan::Half>(pairs_frag[i]);
        const float2 y = unpack<typename Plan::Half>(others_frag[i]);
        dots[i % 2] = fmaf(x.x, y.x, fmaf(x.y, y.y, dots[i % 2]));
      }
    } else {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t place = Cursor::place(lane / 4 + half * 8, step * 4 + lane % 4);
        const uint4 x = load_unit(stage + place);
        const uint4 y = load_unit(other_stage + place);
        dots[half] = fmaf(__uint_as_float(x.x), __uint_as_float(y.x), dots[half]);
        dots[half] = fmaf(__uint_as_float(x.y), __uint_as_float(y.y), dots[half]);
        dots[half] = fmaf(__uint_as_float(x.z), __uint_as_float(y.z), dots[half]);
        dots[half] = fmaf(__uint_as_float(x.w), __uint_as_float(y.w), dots[half]);
      }
    }
  }
  asm volatile("" ::: "memory");  // operands that are loaded meanwhile would cost registers
}

}  // namespace hopper
}  // namespace linattn
