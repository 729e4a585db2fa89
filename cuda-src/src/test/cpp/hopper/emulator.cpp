#include "emulator.h"

#include "../fiber.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace linattn {
namespace hopper {
alignas(4096) unsigned char shared[57 * 4096];  // a window: the memory of the block that runs
}
}  // namespace linattn

namespace emulator {
namespace {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;
constexpr uint32_t kSharedBytes = 227 * 1024;  // that a block may ask for
constexpr uint32_t kSharedStart = 1024 + 16;   // kernels have to align it
constexpr int kSegmentBytes = 128;            // rows of the swizzle
constexpr uint32_t kReadUnit = 16;
constexpr long kMostRounds = 4'000'000;

uint32_t unswizzled(uint32_t linear) { return linear ^ ((linear >> 7 & 7) << 4); }

struct Block;

struct IssuedProduct : Product {
  uint32_t a_words[4];
};

struct Lane {
  Block* block = nullptr;
  unsigned thread = 0;
  Fiber fiber;
  // What it waits for; null where it can run.
  bool (*is_over)(void* waited) = nullptr;
  void* waited = nullptr;
  const char* waits_for = "its start";
  uint32_t waited_number = 0;
  unsigned waited_phase = 0;
  int words_under_way = 0;
  std::vector<std::shared_ptr<int>> store_groups;  // of each, tiles that were not read yet
  std::shared_ptr<int> open_group = std::make_shared<int>(0);
  std::vector<IssuedProduct> products;
  std::vector<size_t> product_groups;  // how many products there are at the end of each

  // Of the same warp.
  bool waits_like(const Lane& other) const {
    return is_over == other.is_over && waited_number == other.waited_number && waited_phase == other.waited_phase;
  }
};

// What a warp has read: without a fence since, and with one but without an arrival since. Then a copy may start there.
class Reads {
 public:
  void add(uint32_t unit) {
    if (states_[unit] != kUnderWay) {
      states_[unit] = kUnderWay;
      under_way_.push_back(unit);
    }
  }
  void end() {
    for (uint32_t unit : under_way_) {
      states_[unit] = kEnded;
    }
    ended_.insert(ended_.end(), under_way_.begin(), under_way_.end());
    under_way_.clear();
  }
  void arrive() {
    for (uint32_t unit : ended_) {
      states_[unit] = states_[unit] == kEnded ? kNone : states_[unit];
    }
    ended_.clear();
  }
  bool any(uint32_t first, uint32_t count) const {
    return std::any_of(states_.begin() + first, states_.begin() + first + count,
                       [](State state) { return state != kNone; });
  }

 private:
  enum State : uint8_t { kNone, kUnderWay, kEnded };
  std::vector<State> states_{std::vector<State>(kSharedBytes / kReadUnit, kNone)};
  std::vector<uint32_t> under_way_;
  std::vector<uint32_t> ended_;
};

struct Warp {
  int arrived = 0;
  unsigned generation = 0;
  const char* instruction = nullptr;
  void* arguments[kWarp] = {};
  std::vector<std::pair<uint32_t, int>> unpublished;  // addresses and bytes
  Reads reads;
  int slowness = 1;
  Lane* all_wait_like = nullptr;  // one of its lanes, where all that have not ended wait for the same
};

struct Meeting {
  int arrived = 0;
  int threads = 0;
  unsigned generation = 0;
  bool said = false;
  bool result = false;

  bool join(int count, bool says);
};

struct MemoryBarrier {
  int arrivals = 0;  // of a phase; 0: not a barrier
  int pending = 0;
  long bytes = 0;
  unsigned phase = 0;
  std::set<unsigned> first_threads;  // that arrived in the first phase
  std::set<unsigned> threads;        // that have arrived in this one
};

struct Block {
  unsigned number = 0;
  uint32_t rank = 0;
  std::vector<Lane> lanes;
  std::vector<Warp> warps;
  Meeting meetings[16];
  std::vector<MemoryBarrier> barriers{kSharedBytes / 8};
  std::vector<size_t> executed_products;  // of each warpgroup
  int memory_file = -1;
  unsigned char* memory = nullptr;               // as lanes see it
  std::vector<unsigned char> background_memory;  // as copies and tensor cores see it
};

struct Errand {
  enum Kind { kCopy, kProducts };  // products are executed at last where they are waited for
  std::function<bool()> run;  // whether it is done
  int delay;
  Kind kind;
};

std::vector<std::unique_ptr<Block>> cluster;
Meeting cluster_meeting;
std::vector<Errand> errands;
std::mt19937 random_engine;
unsigned run_seed;
int longest_delay;
int lanes_alive;
Lane* running;
Block* in_window;

int drawn(int below) { return static_cast<int>(random_engine() % below); }

// The scheduler asks whether the wait is over, so that lanes are not woken in vain; of lanes of a warp that wait for the
// same phase of the same number it asks one.
template <typename Done>
void wait_until(const char* what, uint32_t number, unsigned phase, Done done) {
  if (!done()) {
    running->waits_for = what;
    running->waited_number = number;
    running->waited_phase = phase;
    running->waited = &done;
    running->is_over = [](void* waited) { return (*static_cast<Done*>(waited))(); };
    Fiber::suspend();
  }
}

void print_who_waits() {
  for (const auto& block : cluster) {
    std::map<std::pair<std::string, uint32_t>, std::vector<unsigned>> threads;
    for (const Lane& lane : block->lanes) {
      const bool waits = lane.is_over != nullptr;
      const char* const what = lane.fiber.ended() ? "nothing, has ended" : waits ? lane.waits_for : "nothing, runs";
      threads[{what, waits ? lane.waited_number : 0}].push_back(lane.thread);
    }
    for (const auto& [what, who] : threads) {
      std::printf("  block %u, %zu threads from %u on wait for %s (%u)\n", block->number, who.size(), who[0],
                  what.first.c_str(), what.second);
    }
  }
}

// Now and then the first lane of a warp lets others run, for as long as its warp is slow.
void pause() {
  constexpr int kPauses = 8;  // one of so many
  bool resumed = running->thread % kWarp != 0 || drawn(kPauses) != 0;
  wait_until("its turn", 0, running->thread, [&] { return std::exchange(resumed, true); });
}

void draw_slowness(Warp& warp) {
  constexpr int kSlowness[] = {1, 1, 1, 4, 32, 256};
  warp.slowness = kSlowness[drawn(6)];
}

void show_in_window(Block& block) {
  if (in_window != &block) {
    if (mmap(linattn::hopper::shared, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, block.memory_file,
             0) == MAP_FAILED) {
      fail("no memory for block %u", block.number);
    }
    in_window = &block;
  }
}

std::unique_ptr<Block> make_block(unsigned number, uint32_t rank, int threads, const std::function<void()>& kernel) {
  auto block = std::make_unique<Block>();
  block->number = number;
  block->rank = rank;
  block->lanes.resize(threads);
  block->warps.resize(threads / kWarp);
  block->executed_products.resize((threads + kWarpgroup - 1) / kWarpgroup);
  block->memory_file = memfd_create("shared memory", 0);
  if (block->memory_file < 0 || ftruncate(block->memory_file, kSharedBytes) != 0) {
    fail("no memory for block %u", number);
  }
  block->memory = static_cast<unsigned char*>(
      mmap(nullptr, kSharedBytes, PROT_READ | PROT_WRITE, MAP_SHARED, block->memory_file, 0));
  std::memset(block->memory, 0xff, kSharedBytes);
  block->background_memory.assign(kSharedBytes, 0xff);
  for (int thread = 0; thread < threads; ++thread) {
    block->lanes[thread].block = block.get();
    block->lanes[thread].thread = static_cast<unsigned>(thread);
    block->lanes[thread].fiber.start([&kernel] {
      kernel();
      --lanes_alive;
    });
  }
  for (Warp& warp : block->warps) {
    draw_slowness(warp);
  }
  return block;
}

void run_warp(Block& block, int warp) {
  if (drawn(block.warps[warp].slowness) != 0) {
    return;
  }
  const int first = drawn(kWarp);
  Lane*& all_wait_like = block.warps[warp].all_wait_like;
  running = all_wait_like;
  if (running != nullptr && !running->is_over(running->waited)) {
    running = nullptr;
    return;
  }
  all_wait_like = nullptr;
  Lane* waiting = nullptr;  // the last one that was asked in vain
  bool alike = true;
  for (int i = 0; i < kWarp; ++i) {
    Lane& lane = block.lanes[warp * kWarp + (first + i) % kWarp];
    if (lane.fiber.ended() || (waiting != nullptr && lane.waits_like(*waiting))) {
      continue;
    }
    running = &lane;
    if (lane.is_over != nullptr && !lane.is_over(lane.waited)) {
      alike = alike && waiting == nullptr;
      waiting = &lane;
      continue;
    }
    alike = false;
    lane.is_over = nullptr;
    show_in_window(block);
    lane.fiber.resume();
  }
  all_wait_like = alike ? waiting : nullptr;
  running = nullptr;
}

void run_errand() {
  if (errands.empty()) {
    return;
  }
  const size_t i = random_engine() % errands.size();
  if (--errands[i].delay > 0) {
    return;
  }
  Errand errand = std::move(errands[i]);
  errands[i] = std::move(errands.back());
  errands.pop_back();
  if (!errand.run()) {
    errands.push_back(std::move(errand));
  }
}

Warp& running_warp() { return running->block->warps[running->thread / kWarp]; }

void later(std::function<bool()> run, Errand::Kind kind = Errand::kCopy) {
  errands.push_back({std::move(run), 1 + drawn(longest_delay), kind});
}

Block& block_of(uint32_t address) {
  const uint32_t rank = address / kRankStep;
  return rank == 0 ? *running->block : *cluster[rank - 1];
}

uint32_t offset_of(uint32_t address, int bytes) {
  const uint32_t offset = address % kRankStep - kSharedStart;
  if (offset >= kSharedBytes || offset + bytes > kSharedBytes) {
    fail("%d bytes at %u are not in the shared memory", bytes, address);
  }
  return offset;
}

MemoryBarrier& barrier_at(Block& block, uint32_t address) {
  const uint32_t offset = offset_of(address, 8);
  MemoryBarrier& barrier = block.barriers[offset / 8];
  if (offset % 8 != 0 || barrier.arrivals == 0) {
    fail("there is no barrier at %u", address);
  }
  return barrier;
}

// A warp that is a phase ahead ends it for one that has not arrived: so the same threads arrive in every phase.
void end_phase_if_complete(MemoryBarrier& barrier) {
  if (barrier.pending == 0 && barrier.bytes == 0) {
    if (barrier.phase == 0) {
      barrier.first_threads = barrier.threads;
    } else if (barrier.threads != barrier.first_threads) {
      fail("a phase ends with arrivals of other threads than the first");
    }
    barrier.threads.clear();
    barrier.pending = barrier.arrivals;
    ++barrier.phase;
  }
}

void arrive(Block& block, uint32_t address) {
  MemoryBarrier& barrier = barrier_at(block, address);
  if (barrier.pending == 0) {
    fail("an arrival too many at barrier %u, which awaits %ld bytes", address, barrier.bytes);
  }
  --barrier.pending;
  end_phase_if_complete(barrier);
}

void complete(Block& block, uint32_t address, int bytes) {
  MemoryBarrier& barrier = barrier_at(block, address);
  barrier.bytes -= bytes;
  end_phase_if_complete(barrier);
}

// Where barriers are nothing else may be written.
void keep_off_barriers(const Block& block, uint32_t offset, int bytes) {
  for (uint32_t word = offset / 8; word <= (offset + bytes - 1) / 8; ++word) {
    if (block.barriers[word].arrivals != 0) {
      fail("%d bytes at %u are written over a barrier", bytes, kSharedStart + offset);
    }
  }
}

// By nobody in particular: seen at once.
void put(Block& block, uint32_t offset, const void* from, int bytes) {
  keep_off_barriers(block, offset, bytes);
  std::memcpy(block.memory + offset, from, bytes);
  std::memcpy(&block.background_memory[offset], from, bytes);
}

void keep_off_reads(const Block& block, uint32_t offset, int bytes) {
  for (size_t warp = 0; warp < block.warps.size(); ++warp) {
    if (block.warps[warp].reads.any(offset / kReadUnit, bytes / kReadUnit)) {
      fail("a copy to %u may overtake a read of warp %zu", kSharedStart + offset, warp);
    }
  }
}

void spoil(Block& block, uint32_t offset, int bytes) {
  keep_off_barriers(block, offset, bytes);
  std::memset(block.memory + offset, 0xff, bytes);
  std::memset(&block.background_memory[offset], 0xff, bytes);
}

// Calls visit with the element, or null outside the tensor, and its place in the tile.
template <typename Visit>
void each_element(const TensorMapContent& map, const int64_t (&at)[4], Visit visit) {
  for (int row = 0; row < map.box_rows; ++row) {
    for (int column = 0; column < map.box_columns; ++column) {
      const int64_t place[4] = {at[0] + column, at[1] + row, at[2], at[3]};
      int64_t offset = 0;
      bool within = true;
      for (int i = 0; i < 4; ++i) {
        within = within && place[i] >= 0 && place[i] < map.extents[i];
        offset += place[i] * map.strides[i];
      }
      const auto linear = static_cast<uint32_t>(row * kSegmentBytes + column * map.element_bytes);
      visit(within ? map.address + offset * map.element_bytes : nullptr, unswizzled(linear));
    }
  }
}

float operand_element(const Block& block, Operand16 type, uint64_t descriptor, bool along_rows, int index, int k) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto column_stride = static_cast<uint32_t>(descriptor >> 16 & 0x3fff) << 4;
  const auto eight_rows = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  const int row = along_rows ? k : index;
  const int column = along_rows ? index % 64 : k;
  const uint32_t linear = start + row / 8 * eight_rows + row % 8 * kSegmentBytes + 2 * column +
                          (along_rows ? index / 64 * column_stride : 0);
  uint16_t bits;
  std::memcpy(&bits, &block.background_memory[offset_of(unswizzled(linear), 2)], sizeof bits);
  return to_float(type, bits);
}

void execute_product(Block& block, int warpgroup, size_t number) {
  Lane* const lanes = &block.lanes[warpgroup * kWarpgroup];
  const IssuedProduct& first = lanes[0].products[number];
  std::vector<float> a(64 * 16);
  std::vector<float> b(16 * first.columns);
  for (int k = 0; k < 16; ++k) {
    for (int row = 0; row < 64; ++row) {
      if (first.a_fragment != nullptr) {
        const Lane& holder = lanes[row / 16 * kWarp + row % 8 * 4 + k % 8 / 2];
        const uint32_t word = holder.products[number].a_words[row % 16 / 8 + 2 * (k / 8)];
        a[row * 16 + k] = to_float(first.type, static_cast<uint16_t>(word >> 16 * (k % 2)));
      } else {
        a[row * 16 + k] = operand_element(block, first.type, first.a, first.rows_of_a, row, k);
      }
    }
    for (int column = 0; column < first.columns; ++column) {
      b[k * first.columns + column] = operand_element(block, first.type, first.b, first.rows_of_b, column, k);
    }
  }
  std::vector<float> sums(64 * first.columns, 0.0f);
  const auto each_register = [&](int thread, auto visit) {
    const int lane = thread % kWarp;
    for (int i = 0; i < first.columns / 2; ++i) {
      const int row = thread / kWarp * 16 + lane / 4 + 8 * (i % 4 / 2);
      visit(lanes[thread].products[number].d[i], sums[row * first.columns + 8 * (i / 4) + 2 * (lane % 4) + i % 2]);
    }
  };
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const Product& mine = lanes[thread].products[number];
    if (mine.columns != first.columns || mine.a != first.a || mine.b != first.b ||
        mine.accumulates != first.accumulates) {
      fail("the lanes of a product do not agree on it");
    }
    if (first.accumulates) {
      each_register(thread, [](float d, float& sum) { sum = d; });
    }
  }
  for (int row = 0; row < 64; ++row) {
    for (int k = 0; k < 16; ++k) {
      const float factor = first.negates ? -a[row * 16 + k] : a[row * 16 + k];
      for (int column = 0; column < first.columns; ++column) {
        sums[row * first.columns + column] += factor * b[k * first.columns + column];
      }
    }
  }
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    each_register(thread, [](float& d, float sum) { d = sum; });
  }
}

// Executes products of a warpgroup in order; whether that many are executed. A product waits until all warps have
// issued it.
bool execute_products(Block& block, int warpgroup, size_t wanted) {
  size_t& executed = block.executed_products[warpgroup];
  while (executed < wanted) {
    for (int thread = 0; thread < kWarpgroup; ++thread) {
      if (block.lanes[warpgroup * kWarpgroup + thread].products.size() <= executed) {
        return false;
      }
    }
    execute_product(block, warpgroup, executed++);
  }
  return true;
}

}  // namespace

bool Meeting::join(int count, bool says) {
  if (arrived == 0) {
    threads = count;
    said = false;
  }
  if (count != threads) {
    fail("%d threads are to meet where others said %d", count, threads);
  }
  said = said || says;
  const unsigned before = generation;
  if (++arrived == threads) {
    arrived = 0;
    result = said;
    ++generation;
  } else {
    wait_until("others, as many as", static_cast<uint32_t>(count), before, [&] { return generation != before; });
  }
  return result;
}

void fail(const char* format, ...) {
  std::printf("seed %u: ", run_seed);
  if (running != nullptr) {
    std::printf("block %u, thread %u: ", running->block->number, running->thread);
  }
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
  std::printf("\n");
  print_who_waits();
  std::fflush(stdout);
  std::_Exit(1);
}

void run_cluster(unsigned first_block, int blocks, int threads, unsigned seed, const std::function<void()>& kernel) {
  run_seed = seed;
  random_engine.seed(seed);
  longest_delay = 1 << drawn(12);
  cluster_meeting = {};
  for (int rank = 0; rank < blocks; ++rank) {
    cluster.push_back(make_block(first_block + rank, rank, threads, kernel));
  }
  lanes_alive = blocks * threads;
  const int warps = threads / kWarp;
  constexpr int kRoundsOfBlock = 32;
  Block* block = nullptr;
  for (long round = 0; lanes_alive > 0; ++round) {
    if (round % kRoundsOfBlock == 0) {
      block = cluster[drawn(blocks)].get();
    }
    const int warp = drawn(warps);
    run_warp(*block, warp);
    for (int i = 0; i < 4; ++i) {
      run_errand();
    }
    if (drawn(16384) == 0) {
      draw_slowness(block->warps[warp]);
    }
    if (round > kMostRounds * blocks) {
      fail("no end in sight");
    }
  }
  const auto copies = std::count_if(errands.begin(), errands.end(),
                                    [](const Errand& errand) { return errand.kind == Errand::kCopy; });
  if (copies > 0) {
    fail("%td copies are under way when the blocks have ended", copies);
  }
  errands.clear();
  for (const auto& block : cluster) {
    for (size_t word = 0; word < block->barriers.size(); ++word) {  // written by way of pointers
      if (block->barriers[word].arrivals != 0 &&
          std::any_of(block->memory + 8 * word, block->memory + 8 * word + 8, [](unsigned char c) { return c != 0xff; })) {
        fail("the barrier at %zu was written over", kSharedStart + 8 * word);
      }
    }
    munmap(block->memory, kSharedBytes);
    close(block->memory_file);
  }
  in_window = nullptr;
  cluster.clear();
}

unsigned thread_number() { return running->thread; }
unsigned block_rank() { return running->block->rank; }
unsigned block_number() { return running->block->number; }
int block_threads() { return static_cast<int>(running->block->lanes.size()); }

void in_warp(const char* instruction, void* argument, const std::function<void(void* const (&)[32])>& all) {
  Warp& warp = running_warp();
  if (warp.arrived == 0) {
    warp.instruction = instruction;
  } else if (std::strcmp(warp.instruction, instruction) != 0) {
    fail("%s while other lanes of the warp are at %s", instruction, warp.instruction);
  }
  warp.arguments[running->thread % kWarp] = argument;
  const unsigned before = warp.generation;
  if (++warp.arrived == kWarp) {
    all(warp.arguments);
    warp.arrived = 0;
    ++warp.generation;
  } else {
    wait_until(instruction, 0, before, [&] { return warp.generation != before; });
  }
}

bool meet(int number, int threads, bool says) {
  running_warp().reads.arrive();
  return running->block->meetings[number].join(threads, says);
}

void meet_cluster() { cluster_meeting.join(static_cast<int>(cluster.size()) * block_threads(), false); }

uint32_t address_of(const void* pointer) {
  return kSharedStart +
         static_cast<uint32_t>(static_cast<const unsigned char*>(pointer) - linattn::hopper::shared);
}

uint32_t in_block(uint32_t address, uint32_t rank) {
  if (rank >= cluster.size()) {
    fail("there is no block %u in the cluster", rank);
  }
  if (cluster.size() == 1) {  // a GPU calls it an illegal instruction
    fail("a block that is in no cluster has no address there");
  }
  return address + (rank + 1) * kRankStep;
}

void read(uint32_t address, void* to, int bytes) {
  const uint32_t offset = offset_of(address, bytes);
  Block& block = block_of(address);
  std::memcpy(to, block.memory + offset, bytes);
  if (&block == running->block) {
    running_warp().reads.add(offset / kReadUnit);
  }
}

void write(uint32_t address, const void* from, int bytes) {
  Block& block = *running->block;
  const uint32_t offset = offset_of(address, bytes);
  keep_off_barriers(block, offset, bytes);
  std::memcpy(block.memory + offset, from, bytes);
  running_warp().unpublished.emplace_back(offset, bytes);
}

void publish() {
  Block& block = *running->block;
  Warp& warp = running_warp();
  for (const auto& [offset, bytes] : warp.unpublished) {
    std::memcpy(&block.background_memory[offset], block.memory + offset, bytes);
  }
  warp.unpublished.clear();
  warp.reads.end();
}

void end_reads() { running_warp().reads.end(); }

void barrier_init(uint32_t barrier, int arrivals) {
  const uint32_t offset = offset_of(barrier, 8);
  if (offset % 8 != 0) {
    fail("a barrier at %u", barrier);
  }
  running->block->barriers[offset / 8] = {arrivals, arrivals, 0, 0, {}, {}};
}

void barrier_arrive(uint32_t barrier) {
  running_warp().reads.arrive();
  barrier_at(block_of(barrier), barrier).threads.insert(running->block->rank * kRankStep + running->thread);
  arrive(block_of(barrier), barrier);
  pause();
}

void barrier_expect(uint32_t barrier, int bytes) {
  Block& block = block_of(barrier);
  barrier_at(block, barrier).bytes += bytes;
  arrive(block, barrier);
}

void barrier_wait(uint32_t barrier, uint32_t parity) {
  const MemoryBarrier& waited = barrier_at(*running->block, barrier);
  wait_until("barrier", barrier, parity, [&] { return (waited.phase & 1) != parity; });
}

void copy_word(uint32_t to, const void* from) {
  Lane* const lane = running;
  const uint32_t offset = offset_of(to, 4);
  spoil(*lane->block, offset, 4);
  ++lane->words_under_way;
  later([=] {
    put(*lane->block, offset, from, 4);
    --lane->words_under_way;
    return true;
  });
}

void arrive_with_words(uint32_t barrier) {
  Lane* const lane = running;
  later([=] {
    if (lane->words_under_way > 0) {
      return false;
    }
    arrive(*lane->block, barrier);
    return true;
  });
}

void send(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  running_warp().reads.arrive();  // those that have ended are over for whoever waits for what is sent
  Block* const block = &block_of(to);
  const uint32_t offset = offset_of(to, bytes);
  std::array<unsigned char, 16> sent{};
  std::memcpy(sent.data(), from, bytes);
  keep_off_reads(*block, offset, bytes);
  spoil(*block, offset, bytes);
  later([=] {
    put(*block, offset, sent.data(), bytes);
    complete(*block, barrier, bytes);
    return true;
  });
}

void load_tile(uint32_t tile, const TensorMapContent& map, const int64_t (&at)[4], uint32_t barrier) {
  Block* const block = running->block;
  const int bytes = map.box_columns * map.box_rows * map.element_bytes;
  const uint32_t start = offset_of(tile, bytes);
  if (tile % 1024 != 0) {
    fail("a tile at %u, which is no multiple of 1024", tile);
  }
  keep_off_reads(*block, start, bytes);
  spoil(*block, start, bytes);
  later([=, column = at[0], token = at[1], head = at[2], batch = at[3]] {
    each_element(map, {column, token, head, batch}, [&](const char* element, uint32_t offset) {
      constexpr char kZeros[8] = {};
      put(*block, start + offset, element != nullptr ? element : kZeros, map.element_bytes);
    });
    complete(*block, barrier, bytes);
    return true;
  });
}

void store_tile(const TensorMapContent& map, const int64_t (&at)[4], uint32_t tile) {
  Block* const block = running->block;
  const uint32_t start = offset_of(tile, map.box_columns * map.box_rows * map.element_bytes);
  const std::shared_ptr<int> group = running->open_group;
  ++*group;
  later([=, column = at[0], token = at[1], head = at[2], batch = at[3]] {
    each_element(map, {column, token, head, batch}, [&](char* element, uint32_t offset) {
      if (element != nullptr) {
        std::memcpy(element, &block->background_memory[start + offset], map.element_bytes);
      }
    });
    --*group;
    return true;
  });
}

void commit_stores() {
  running->store_groups.push_back(running->open_group);
  running->open_group = std::make_shared<int>(0);
}

void wait_for_stores(int pending) {
  const auto& groups = running->store_groups;
  const auto end = groups.end() - std::min<size_t>(pending, groups.size());
  wait_until("its stores", static_cast<uint32_t>(pending), running->thread,
             [&] { return std::all_of(groups.begin(), end, [](const auto& group) { return *group == 0; }); });
}

float to_float(Operand16 type, uint16_t bits) {
  static const std::vector<float> halves = [] {  // the conversion may be a call
    std::vector<float> all(1 << 16);
    for (uint32_t i = 0; i < all.size(); ++i) {
      const auto word = static_cast<uint16_t>(i);
      _Float16 half;
      std::memcpy(&half, &word, sizeof half);
      all[i] = static_cast<float>(half);
    }
    return all;
  }();
  return type == Operand16::kF16 ? halves[bits] : __uint_as_float(static_cast<uint32_t>(bits) << 16);
}

uint16_t from_float(Operand16 type, float x) {
  if (type == Operand16::kBf16) {
    const uint32_t bits = __float_as_uint(x);
    return x != x ? 0x7fff : static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  const auto half = static_cast<_Float16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}

void issue(const Product& product) {
  IssuedProduct issued = {product, {}};
  if (product.a_fragment != nullptr) {
    std::copy_n(product.a_fragment, 4, issued.a_words);
  }
  running->products.push_back(issued);
}

// Executed some time later, or at last where they are waited for.
void commit_products() {
  Block* const block = running->block;
  const int warpgroup = static_cast<int>(running->thread) / kWarpgroup;
  const size_t issued = running->products.size();
  running->product_groups.push_back(issued);
  if (running->thread % kWarpgroup == 0) {
    later([=] { return execute_products(*block, warpgroup, issued); }, Errand::kProducts);
  }
}

void wait_for_products(int pending) {
  const size_t groups = running->product_groups.size();
  if (groups > static_cast<size_t>(pending)) {
    Block& block = *running->block;
    const int warpgroup = static_cast<int>(running->thread) / kWarpgroup;
    const size_t wanted = running->product_groups[groups - 1 - pending];
    wait_until("products of its warpgroup", static_cast<uint32_t>(wanted), 0, [&] { return execute_products(block, warpgroup, wanted); });
  }
}

}  // namespace emulator
