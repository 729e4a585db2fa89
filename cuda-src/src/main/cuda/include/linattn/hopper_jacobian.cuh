// The role that finishes rows: dq and dk of rows that were divided by their lengths become those of the rows themselves,
//
//   dx = (dy - y (y . dy)) s,   y = s x,   s = 1 / |x|,
//
// in shared memory, where the state leaves them, on their way out. dv passes unchanged.
#pragma once

#include "linattn/hopper_block.cuh"
#include "linattn/hopper_outputs.cuh"

namespace linattn {
namespace hopper {

// Warps of a box of 64 columns of the outputs; each has bands of 16 rows, of which it works on two at a time. A lane has
// columns 2 t, 2 t + 1 of each eight, t = lane % 4, of rows `lane / 4` of a band and 8 more.
template <class Plan>
struct Jacobian {
  static constexpr int kFirstBarrier = 2 + Plan::kBeside;  // of as many as there are boxes
  static constexpr int kWarps = Plan::kJacobianWarps / Plan::kBeside;
  static constexpr int kThreads = Plan::kJacobianThreads;
  static constexpr int kBands = Plan::kChunk / 16 / kWarps;
  static constexpr int kScales = kBands * 16 / kWarp;
  static constexpr int kSteps = Plan::kBoxColumns / 16;
  static_assert(kBands * 16 % kWarp == 0, "a lane asks for the lengths of whole rounds");
  using Half = typename Plan::Half;

  const Block<Plan>& block;
  const TensorMap* rows;
  Outputs<Plan> outputs;  // of its box
  int warp;               // of those of the box
  int lane;
  float marks = 0.0f;  // NaN once a product was not finite, or a length not one to go by

  __device__ __forceinline__ Jacobian(const Block<Plan>& shared, const TensorMap* divided_rows, int jacobian_warp,
                                      int lane_idx)
      : block(shared),
        rows(divided_rows),
        outputs(shared, jacobian_warp / kWarps, jacobian_warp % kWarps, lane_idx),
        warp(jacobian_warp % kWarps),
        lane(lane_idx) {}

  __device__ __forceinline__ int first_band() const { return warp * kBands; }

  // The state writes once for each group of query heads, the last of its chunks.
  __device__ __forceinline__ int chunk_of(int written) const { return (written + 1) * block.group() - 1; }

  // Boxes of a row, in all blocks of the item, the first ones of the cluster. Those that begin past its end count:
  // they are zero.
  __device__ __forceinline__ int num_tiles() const { return ceil_div(block.chunked().value_dim, Plan::kTileColumns); }
  __device__ __forceinline__ int num_boxes() const { return num_tiles() * Plan::kBeside; }

  __device__ __forceinline__ void run() {
    const bool divides = block.args.gradient.task != kValueGradient;
    const int num_written = block.num_chunks / block.group();
    RingPosition<Plan::kOutputBuffers> outputs_at;
    RingPosition<Plan::kOutputBuffers> given_back_at;
    RingPosition<Plan::kRowTiles> rows_at;
    RingPosition<Plan::kRowProductPlaces> products_at;
    if (divides) {
      RingPosition<Plan::kRowTiles> place;
      for (int i = 0; i < min(Plan::kRowTiles, num_written); ++i) {
        ask_for_rows(i, place);
        place.advance();
      }
    }
    for (int written = 0; written < num_written; ++written) {
      const int chunk = chunk_of(written);
      const uint32_t tile = block.outputs(outputs.box * Plan::kOutputBuffers + outputs_at.index());
      float scales[kScales];
      if (divides) {
        ask_for_scales(chunk, scales);
      }
      barrier_wait(block.outputs_full(outputs.box, outputs_at.index()), outputs_at.parity());
      const uint32_t row_tile = block.row_tile(outputs.box, rows_at.index());
      if (divides) {
        barrier_wait(block.row_tile_full(outputs.box, rows_at.index()), rows_at.parity());
        send_products(tile, row_tile, products_at);
      }
      if (written > 0) {  // while products are on their way
        give_back(given_back_at);
        given_back_at.advance();
      }
      if (divides) {
        divide(chunk, tile, row_tile, scales, products_at);
      }
      publish_to_async_proxy();
      named_barrier(kFirstBarrier + outputs.box, kThreads);
      if (divides && written + Plan::kRowTiles < num_written) {
        ask_for_rows(written + Plan::kRowTiles, rows_at);
      }
      if (block.rows(chunk) < Plan::kChunk) {
        outputs.template copy_tail<kThreads>(tile, chunk);
      } else if (outputs.leads()) {
        outputs.start_store(tile, chunk);
      }
      outputs_at.advance();
      rows_at.advance();
      products_at.advance();
    }
    if (outputs.leads()) {
      wait_for_stores();
    }
  }

  // A buffer, once the copy has read it. Every thread arrives: it wrote there, and of a tail it read.
  __device__ __forceinline__ void give_back(const RingPosition<Plan::kOutputBuffers>& at) const {
    if (outputs.leads()) {
      wait_for_stores_to_read<0>();
    }
    barrier_arrive(block.outputs_empty(outputs.box, at.index()));
  }

  __device__ __forceinline__ void ask_for_rows(int written, const RingPosition<Plan::kRowTiles>& at) const {
    if (outputs.leads()) {
      const ItemWork& work = block.work;
      const uint32_t full = block.row_tile_full(outputs.box, at.index());
      barrier_expect(full, Plan::kBoxBytes);
      load_tile(block.row_tile(outputs.box, at.index()), rows,
                {outputs.first_column(), work.start + block.first_token(chunk_of(written)), block.query_head(),
                 work.batch},
                full);
    }
  }

  // Of rows `lane`, lane + 32 of this warp.
  __device__ __forceinline__ void ask_for_scales(int chunk, float (&scales)[kScales]) const {
#pragma unroll
    for (int i = 0; i < kScales; ++i) {
      const int row = first_band() * 16 + i * kWarp + lane;
      scales[i] = Plan::kQueryGradient ? block.query_scale(chunk, row) : block.key_scale(chunk, row);
    }
  }

  // Where this lane's rows of band 0 have their products.
  __device__ __forceinline__ uint32_t own_products(const RingPosition<Plan::kRowProductPlaces>& at) const {
    return block.row_products(at.index()) + (lane >> 2) * 4;
  }

  __device__ __forceinline__ void send_products(uint32_t tile, uint32_t row_tile,
                                                const RingPosition<Plan::kRowProductPlaces>& at) const {
    const uint32_t full = block.barrier(Plan::kRowProductsFull, at.index());
    const bool alone = blocks_of_cluster() == 1;  // and then has whole rows; it has no address to send to
    if (!alone && outputs.box == 0 && outputs.leads()) {
      barrier_expect(full, num_boxes() * Plan::kChunk * 4);
    }
#pragma unroll 2
    for (int band = first_band(); band < first_band() + kBands; ++band) {
      const float2 products = multiply(tile, row_tile, band);
      const uint32_t word = own_products(at) + band * 64 + own_box() * Plan::kChunk * 4;
      if (alone) {
        keep(word, products);
      } else {
        send(word, full, products);
      }
    }
    if (alone) {
      barrier_arrive(full);
    }
  }

  __device__ __forceinline__ void divide(int chunk, uint32_t tile, uint32_t row_tile, const float (&scales)[kScales],
                                         const RingPosition<Plan::kRowProductPlaces>& at) {
    barrier_wait(block.barrier(Plan::kRowProductsFull, at.index()), at.parity());
#pragma unroll 2
    for (int band = first_band(); band < first_band() + kBands; ++band) {
      const float2 products = add_boxes(own_products(at) + band * 64);
      const float own_scale = kScales == 1 || band - first_band() < 2 ? scales[0] : scales[kScales - 1];
      const int row = band * 16 + (lane >> 2);
      const float2 scale = make_float2(usable(__shfl_sync(kAllLanes, own_scale, row % kWarp)),
                                       usable(__shfl_sync(kAllLanes, own_scale, row % kWarp + 8)));
      const float2 along = make_float2(products.x * scale.x * scale.x, products.y * scale.y * scale.y);
      marks = fmaf(row < block.rows(chunk) ? along.x : 0.0f, 0.0f, marks);
      marks = fmaf(row + 8 < block.rows(chunk) ? along.y : 0.0f, 0.0f, marks);
      // Rows of zeros get zeros.
      subtract(tile, row_tile, band, along,
               make_float2(scale.x < 0.0f ? 0.0f : scale.x, scale.y < 0.0f ? 0.0f : scale.y));
    }
  }

  // NaN where a product of the row as it is may leave the range of fp32: the item is then computed again.
  __device__ __forceinline__ static float usable(float scale) {
    const float size = fabsf(scale);
    return size >= 0x1p-60f && size <= 0x1p60f ? scale : __int_as_float(0x7fffffff);
  }

  // Of 16 columns of a band, as products take them.
  __device__ __forceinline__ uint32_t matrices(int band, int step) const {
    return swizzled(band * 16 + (lane & 15), step * 2 + (lane >> 4));
  }

  // x . dy of a band and a box: the diagonal of a product of tiles. Every lane gets those of its two rows.
  __device__ __forceinline__ float2 multiply(uint32_t tile, uint32_t row_tile, int band) const {
    float first_frag[4] = {};
    float second_frag[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t output[4];
      uint32_t row[4];
      load_matrices(tile + matrices(band, step), output);
      load_matrices(row_tile + matrices(band, step), row);
      Half::add_product(first_frag, output, row[0], row[2]);
      Half::add_product(second_frag, output, row[1], row[3]);
    }
    const bool odd = (lane >> 2 & 1) != 0;
    const int diagonal_lane = (lane & 28) + (lane >> 3 & 3);
    return make_float2(__shfl_sync(kAllLanes, odd ? first_frag[1] : first_frag[0], diagonal_lane),
                       __shfl_sync(kAllLanes, odd ? second_frag[3] : second_frag[2], diagonal_lane));
  }

  // Among the boxes of a row.
  __device__ __forceinline__ int own_box() const { return block.work.tile * Plan::kBeside + outputs.box; }

  __device__ __forceinline__ void keep(uint32_t word, float2 products) const {
    if ((lane & 3) == 0) {
      store_float(word, products.x);
      store_float(word + 32, products.y);
    }
  }

  // To every block of the item, itself too. Of the four lanes of a row each sends to one.
  __device__ __forceinline__ void send(uint32_t word, uint32_t full, float2 products) const {
    for (int rank = lane & 3; rank < num_tiles(); rank += 4) {
      const uint32_t full_there = address_in_block(full, rank);
      store_float_async(address_in_block(word, rank), products.x, full_there);
      store_float_async(address_in_block(word + 32, rank), products.y, full_there);
    }
  }

  // In the same order in every block.
  __device__ __forceinline__ float2 add_boxes(uint32_t own_products) const {
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
    for (int box = 0; box < num_boxes(); ++box) {
      sum.x += load_float(own_products + box * Plan::kChunk * 4);
      sum.y += load_float(own_products + box * Plan::kChunk * 4 + 32);
    }
    return sum;
  }

  // (dy - x along) times the factor of the row.
  __device__ __forceinline__ void subtract(uint32_t tile, uint32_t row_tile, int band, float2 along,
                                           float2 factors) const {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t output[4];
      uint32_t row[4];
      load_matrices(tile + matrices(band, step), output);
      load_matrices(row_tile + matrices(band, step), row);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float product = i % 2 == 0 ? along.x : along.y;
        const float factor = i % 2 == 0 ? factors.x : factors.y;
        const float low = fmaf(-product, Half::low(row[i]), Half::low(output[i]));
        const float high = fmaf(-product, Half::high(row[i]), Half::high(output[i]));
        output[i] = Half::pack(low * factor, high * factor);
      }
      store_matrices(tile + matrices(band, step), output);
    }
  }
};

}  // namespace hopper
}  // namespace linattn
