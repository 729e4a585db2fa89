// The shared memory, the barriers and the roles of the forward on sm_90a, derived from a specification.
#pragma once

#include "linattn/hopper.cuh"
#include "linattn/hopper_operand.cuh"

namespace linattn {
namespace hopper {

// A chunk is 64 tokens. Tiles are boxes of 64 columns, 64 rows of 128 bytes. Behind the rows of a box of K
// stand 8 rows for z, and behind those of W 8 rows whose first is one: they add q.z to the scores and the
// sum of v to the outputs. With three products every box is a pair, the upper and the lower half of its
// elements; that of K is upper, z, lower, so that upper queries are multiplied by all at once.
//
// Spec has kHeadDim, Element (of the tensors), Half (of the operands: Bf16 or F16), kProducts (1 or 3),
// kAddsChunks (whether one product of a chunk starts from zero and S takes it in, rounded to nearest),
// kPutByChunks (after how many chunks S is put by, rounded to nearest, and starts from zero; 0 never),
// kNormalize (whether rows of q and k are divided by their length), kScalesRows (whether those of a gradient are, by
// lengths that it is given), kSums (whether the sums of the items are all that is wanted: S, z and u, or with
// kGradientSums dS, dz and du), kQueryGradient and kKeyValueGradient (whether it is the gradient of q, or of k or v),
// kFormsDelta (whether d is formed here), kMerged (whether the warps of the scores do what auxiliary warps do
// elsewhere), kBeside (warpgroups of the state side by side, each with 64 value columns of the
// block), kTogether (blocks that a multiprocessor has at once), kStages, kSlots (fp32 tiles of 64 x 64 on their way; 0
// where tiles land as they are used), kPairs (of boxes of q and k on their way where these stream, else 0), kWeightBuffers,
// kOutputBuffers (of each warpgroup of the state; 0 where outputs leave from the place of their queries),
// kAuxiliaryGroups (warpgroups), the registers of the roles, and Products, the instructions.
template <class Spec_>
struct HopperPlan {
  using Spec = Spec_;
  using Element = typename Spec::Element;
  using Half = Operand<typename Spec::Half>;
  using Products = typename Spec::Products;

  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kProducts = Spec::kProducts;
  static constexpr bool kSplit = kProducts == 3;
  static constexpr bool kAddsChunks = Spec::kAddsChunks;
  static constexpr int kPutByChunks = Spec::kPutByChunks;
  static constexpr int kElementBytes = static_cast<int>(sizeof(Element));
  static constexpr bool kConverted = kElementBytes == 4;
  static constexpr bool kScaled = Half::kScaled;
  static constexpr bool kNormalize = Spec::kNormalize;
  static constexpr bool kScalesRows = Spec::kScalesRows;
  static constexpr bool kSums = Spec::kSums;
  static constexpr bool kOneSweep = false;  // dq, dk and dv at once
  static constexpr bool kQueryGradient = Spec::kQueryGradient;
  // The gradient of k or of v: from the last chunk on, once for each query head of a group.
  static constexpr bool kReverse = Spec::kKeyValueGradient;
  // Sums of dS, dz and du, with q and dO in the places of k and v.
  static constexpr bool kGradientSums = Spec::kGradientSums;
  // Whether rows of z come multiplied by b / g, those of all query heads of a group.
  static constexpr bool kWeighsRows = kReverse || kGradientSums;
  static constexpr bool kGradient = kQueryGradient || kWeighsRows;
  // Whether d = o . dO is formed here: of tiles of o in the stage, of slots, where rows are split of one box at a time,
  // or by the warps beside the producer, which have no other work, of two boxes at a time.
  static constexpr bool kFormsDelta = Spec::kFormsDelta;
  static constexpr bool kSplitsDelta = kFormsDelta && kSplit;
  static constexpr bool kDeltaBeside = kFormsDelta && Spec::kMerged;
  static constexpr bool kDeltaInStage = kFormsDelta && !kConverted && !kDeltaBeside;
  // Whether it comes in parts, which the blocks of a cluster may send to one another.
  static constexpr bool kSendsDelta = kSplitsDelta || kDeltaBeside;
  // Whether a row has a constant of its own instead of a.
  static constexpr bool kRowConstants = kNormalize || kQueryGradient;
  // Operands of fp16 whose tensors are fp16: what is too large for them can only be scaled as S and W.
  static constexpr bool kFollows = kScaled && !kConverted;
  // Q, K and V of a stage are filled and given back apart, where a stage is too large to come as a whole.
  static constexpr bool kApart = kSplit || (kHeadDim > 128 && !kSums);
  static constexpr int kStages = Spec::kStages;
  static constexpr int kSlots = Spec::kSlots;
  // Where a chunk does not fit beside the one before, boxes of q and k stream through a ring, a pair at a time, and only V
  // stays until the chunk is done.
  static constexpr int kPairs = Spec::kPairs;
  static constexpr bool kStreams = kPairs > 0;
  // Whether two blocks of an item may share the scores of a chunk: each multiplies half of the boxes, which come first, and
  // both add up what they have.
  static constexpr bool kSharesScores = kStreams && kHeadDim % (2 * 64) == 0;
  static_assert(!kSharesScores || kPairs >= 2, "d is there before the places behind the first half are given back");
  // Whether d, where it is formed of one box of o at a time, is of half of the columns of each: there is no room for more.
  static constexpr bool kDeltaInHalves = kSplitsDelta && kSharesScores;
  static constexpr int kBeside = Spec::kBeside;
  static constexpr bool kMerged = Spec::kMerged;
  static constexpr int kTogether = Spec::kTogether;
  // Whether the producer is a warp of the scores, which then starts copies between two chunks. The gradients have
  // registers for a warpgroup of its own.
  static constexpr bool kScoresProduce = kMerged && !kGradient;
  // Rows of z get their weights in the registers of the state, not where they landed; in the gradient of q these are
  // 1 / |k|.
  static constexpr bool kWeighsInState =
      !kConverted && ((kReverse && kBeside > 1) || (kQueryGradient && kScalesRows));
  // Normalised rows of k of 16 bits stay as they landed: the scores, z and S take 1 / |k| with their products.
  static constexpr bool kWeighsKeys = kNormalize && !kConverted;
  // Whether warpgroups mark their columns themselves, so that nothing is kept until all meet: cheaper in registers
  // unless scales follow the tokens.
  static constexpr bool kMarksAtOnce = kReverse && !kFollows;
  // Where registers are short an output that is not finite spoils u instead of marks, and with it the outputs to come.
  static constexpr bool kMarksInSums = kGradient && kHeadDim > 128;
  static constexpr bool kMarksOutputs = true;
  // Rows of fp32 for two warpgroups of the state: the warps behind the producer convert them, the producer weighs.
  static constexpr bool kCompact = kReverse && kConverted && kBeside > 1;
  // Where these are split outputs leave from the place of their queries.
  static constexpr bool kOutputsInQueries = kCompact && kSplit;
  // Split rows that leave few registers: the halves of S are made of a part of its columns at a time, and the products
  // of a chunk likewise.
  static constexpr bool kInParts = kOutputsInQueries || (kSplit && kHeadDim > 128);
  // Whether z and u, or dz and du, are sums of rows on their way to operands; else of what stands in the stage.
  static constexpr bool kSumsOnTheWay = kSums && kConverted && (kGradientSums || (kSplit && !kNormalize));
  static constexpr bool kConvertsForSums = kSumsOnTheWay && kSplit;
  // Whether boxes of k are given back one by one, as the products of a part of S have read them.
  static constexpr bool kBoxesApart = kConvertsForSums && kInParts;
  // Whether the item is read again from shared memory where it is used: for want of registers, of which blocks in pairs that
  // measure rows first begin faster with more.
  static constexpr bool kReadsItemAgain = kBeside > 1 || kInParts || (kTogether > 1 && kScaled);
  // Whether blocks may take turns, and whether they do.
  static constexpr bool kMayTakeTurns = !kSums && !kReverse && !kConverted && !kNormalize && !kApart;
  static constexpr bool kTurns = false;
  // Whether blocks may go on where others have stopped: hopper_relay.cuh. That of the gradient of q which weighs rows in
  // the registers of the state has none left for it. Blocks that take turns do not.
  static constexpr bool kMayRelay = !kSums && !(kQueryGradient && kWeighsInState);
  // Whether steps of the reverse differ: some add to the outputs of a chunk, or leave the state alone. Those of the
  // sums for it may be of several heads.
  static constexpr bool kUneven = false;
  // Where no registers are left for what a number of chunks is multiplied by in the place of a division by the group.
  static constexpr bool kSparesDivisor = kReverse && kMerged && kScaled && kScalesRows;

  static constexpr int kChunk = 64;
  static constexpr int kBoxColumns = 64;
  static constexpr int kTileColumns = kBeside * kBoxColumns;  // of values, of a block
  static constexpr int kBoxes = (kHeadDim + kBoxColumns - 1) / kBoxColumns;
  static constexpr int kBoxBytes = kChunk * kRowBytes;
  static constexpr int kExtraBytes = 8 * kRowBytes;
  static constexpr int kHalves = kSplit ? 2 : 1;
  static constexpr int kQueryBox = kHalves * kBoxBytes;
  static constexpr int kKeyExtra = kStreams && kReverse ? 0 : kExtraBytes;  // there is no z
  static constexpr int kKeyBox = kHalves * kBoxBytes + kKeyExtra;
  static constexpr int kLowerKey = kBoxBytes + kKeyExtra;        // from the upper half of a box of K
  static constexpr int kLowerWeights = kBoxBytes + kExtraBytes;  // of a box of W
  static constexpr int kLower = kBoxBytes;                       // of a box of Q or V
  // Whether scores of upper queries and lower keys stand behind the others, from this register on.
  static constexpr bool kScoresApart = kSplit && (!kReverse || kStreams);
  static constexpr int kLowerScores = (kBoxBytes + kKeyExtra) / kRowBytes / 2;

  static constexpr int kKeyOffset = 0;
  static constexpr int kQueryOffset = (kStreams ? 1 : kBoxes) * kKeyBox;
  static constexpr int kPairBytes = kQueryOffset + kQueryBox;
  static constexpr int kValueOffset = kStreams ? 0 : kQueryOffset + (kSums ? 0 : kBoxes * kQueryBox);
  static constexpr int kRowsOffset = kValueOffset + kBeside * kQueryBox;
  static constexpr int kStageBytes = kRowsOffset + (kDeltaInStage ? kBoxes * kBoxBytes : 0);

  static constexpr int kSlotBytes = 2 * kBoxBytes;  // 64 x 64 of fp32: two boxes of 32 columns
  // Slots of a chunk in this order: queries, each with outputs of the forward behind it where d is formed; keys; the
  // values.
  static constexpr int kQueryStep = kFormsDelta && !kSplit ? 2 : 1;
  static constexpr int kQuerySlots = (kSums ? 0 : kQueryStep) * kBoxes;
  static constexpr int kSlotsPerChunk = kQuerySlots + kBoxes + kBeside;

  static constexpr int kWeightBuffers = Spec::kWeightBuffers;
  static constexpr int kWeightBytes = kHalves * kBoxBytes + kExtraBytes;
  static constexpr int kOutputBuffers = Spec::kOutputBuffers;
  static constexpr int kOutputBytes = kChunk * kBoxColumns * kElementBytes;

  static constexpr int kSlotsOffset = 0;
  static constexpr int kPairsOffset = kSlots * kSlotBytes;
  static constexpr int kStagesOffset = kPairsOffset + kPairs * kPairBytes;
  static constexpr int kOutputsOffset = kStagesOffset + kStages * kStageBytes;
  static constexpr int kOutputRowsOffset = kOutputsOffset + kBeside * kOutputBuffers * kOutputBytes;
  static constexpr int kWeightsOffset = kOutputRowsOffset + (kDeltaInHalves ? kBoxBytes : kSendsDelta ? kSlotBytes : 0);
  // Scores of the other block: of each warp the tiles of 16 x 8 that stand in W, and q.z.
  static constexpr int kOtherScoresOffset = kWeightsOffset + kWeightBuffers * kWeightBytes;
  static constexpr int kScoreTileBytes = 16 * 8 * 4;
  static constexpr int kScoreTiles = 2 * (1 + 2 + 3 + 4);
  static constexpr int kOtherScoreBytes = kScoreTiles * kScoreTileBytes + (kReverse ? 0 : kChunk * kUnitBytes);
  static constexpr int kColumnsOffset = kOtherScoresOffset + (kSharesScores ? kOtherScoreBytes : 0);
  static constexpr int kLengthsOffset = kColumnsOffset + kWeightBuffers * 2 * kChunk * 4;
  // 1 / |k|, and behind it its parts of 16 bits, with four words between them so that no two want the same bank.
  static constexpr int kKeyWeightsOffset = kLengthsOffset + kStages * kChunk * 4;
  static constexpr int kWeightParts = 3;
  static constexpr int kWeightPartBytes = kChunk * 2 + 16;
  static constexpr int kKeyWeightBytes = kChunk * 4 + kWeightParts * kWeightPartBytes;
  // Of the rows of z, of sums those of y and of z, and the unit of z.
  static constexpr int kFactorsOffset = kKeyWeightsOffset + (kWeighsKeys ? kStages * kKeyWeightBytes : 0);
  static constexpr int kFactorBytes = kWeighsRows ? (kGradientSums ? 2 : 1) * kChunk * 4 + 16 : 0;
  // g and d of the rows of chunks. They are asked for with the tiles: behind those under way they would come
  // late. Slots run ahead of the stages. Of d that comes in parts there is one of each box, of two, or of the halves of
  // all; the other block of the cluster is at most as far ahead as its stages.
  static constexpr int kRowPlaces = !kGradient ? 1 : kSendsDelta ? kStages + 2 : kStages + 3;
  static_assert(!kGradient || kSplit || (kRowPlaces - 1) * kSlotsPerChunk >= kSlots, "rows of the chunks under way");
  static constexpr int kDeltaBlocks = 2;  // of the cluster that forms it
  static constexpr int kDeltaParts = kDeltaInHalves ? 2 : kSplitsDelta ? kBoxes : kDeltaBeside ? (kBoxes + 1) / 2 : 1;
  // Behind them where rows are divided: 1 / length of the rows of z, and of x where these are rows of k or of v. Not where
  // rows are divided as they are converted, for dq, nor where there is no room.
  static constexpr bool kKeepsScales = kScalesRows && !(kConverted && !kWeighsRows) && !(kCompact && !kSplit);
  static constexpr int kScaleParts = !kKeepsScales ? 0 : kReverse ? 2 : 1;
  static constexpr int kRowBytesOfChunk = (1 + kDeltaParts + kScaleParts) * kChunk * 4;
  static constexpr int kSummingWarps = 4 * (1 + kBeside);  // of scores and state, with partial sums of da and db
  static constexpr int kPartialsBytes = 16 * 16;           // of at most so many warps
  static constexpr int kRowValuesOffset = kFactorsOffset + kStages * kFactorBytes;
  // Of da and db, two doubles of each warp.
  static constexpr int kPartialsOffset = kRowValuesOffset + (kGradient ? kRowPlaces * kRowBytesOfChunk : 0);
  // z and u, or dz and du, of the rows of each of the four warps that convert.
  static constexpr int kRowSumsOffset = kPartialsOffset + (kQueryGradient ? kPartialsBytes : 0);
  static constexpr int kRowSumsBytes = 4 * (kBoxes + 1) * kBoxColumns * 4;
  // z, and of sums u, where keys are weighed.
  static constexpr int kSumsOffset = kRowSumsOffset + (kSumsOnTheWay ? kRowSumsBytes : 0);
  static constexpr int kSumsBytes = ((kHeadDim + 15) / 16 * 16 + (kSums ? kTileColumns : 0)) * 4;
  static constexpr int kBarriersOffset = kSumsOffset + (kWeighsKeys ? kSumsBytes : 0);

  // Barriers, 8 bytes each.
  static constexpr int kNumSlotBarriers =
      !kConverted ? 0 : kStreams ? kPairs + kStages : kSplit ? kStages * kSlotsPerChunk : kSlots;
  static constexpr int kSlotFull = 0;
  static constexpr int kSlotEmpty = kSlotFull + kNumSlotBarriers;
  static constexpr int kKeyFull = kSlotEmpty + (kSplit ? 0 : kNumSlotBarriers);
  static constexpr int kQueryFull = kKeyFull + kStages;
  static constexpr int kValueFull = kQueryFull + kStages;
  static constexpr int kKeyEmpty = kValueFull + kStages;
  static constexpr int kQueryEmpty = kKeyEmpty + kStages;
  static constexpr int kValueEmpty = kQueryEmpty + kStages;
  static constexpr int kReady = kValueEmpty + kStages;
  static constexpr int kRowsFull = kReady + kStages;
  static constexpr int kWeightsFull = kRowsFull + (kGradient ? kRowPlaces : 0);
  static constexpr int kWeightsEmpty = kWeightsFull + kWeightBuffers;
  static constexpr int kPartialsFull = kWeightsEmpty + kWeightBuffers;
  static constexpr int kOutputRowsFull = kPartialsFull + (kQueryGradient ? 1 : 0);
  static constexpr int kOutputRowsEmpty = kOutputRowsFull + (kSendsDelta ? 1 : 0);
  static constexpr int kQueryRead = kOutputRowsEmpty + (kSendsDelta ? 1 : 0);
  static constexpr int kLengthsFull = kQueryRead + (kOutputsInQueries ? kStages : 0);
  static constexpr int kPairFull = kLengthsFull + (kWeighsKeys ? kStages : 0);
  static constexpr int kPairEmpty = kPairFull + kPairs;
  // Scores of the other block have come; it has taken those of this one.
  static constexpr int kOtherScoresFull = kPairEmpty + kPairs;
  static constexpr int kOtherScoresTaken = kOtherScoresFull + (kSharesScores ? 1 : 0);
  static constexpr int kBoxEmpty = kOtherScoresTaken + (kSharesScores ? 1 : 0);
  static constexpr int kNumBarriers = kBoxEmpty + (kBoxesApart ? kStages * kBoxes : 0);
  static constexpr int kScalesOffset = kBarriersOffset + kNumBarriers * 8;

  static constexpr int kAlignment = 1024;
  static constexpr int kExtentsOffset = kScalesOffset + 48;
  static constexpr int kWorkOffset = kExtentsOffset + 32;
  static constexpr int kNumberOffset = kWorkOffset + 44;
  static constexpr int kSharedBytes = kNumberOffset + 4 + kAlignment;

  // Warpgroups in this order: copies and sums, scores, state, rows; those that there are. With two
  // warpgroups of the state of a forward there are registers for one more, which has all other roles.
  static constexpr int kAuxiliaryGroups = Spec::kAuxiliaryGroups;  // with the producer, a warp
  static constexpr int kAuxiliaryWarps = kMerged ? 4 : kCompact ? 1 : 4 * kAuxiliaryGroups - 1;
  static constexpr int kConverters = kCompact ? 3 : 4;  // warps
  static constexpr int kDeltaWarps = kDeltaBeside ? 3 : 4;  // where d comes in parts
  static constexpr bool kHasRows = kConverted || kNormalize;
  static constexpr int kScoreGroup = kScoresProduce ? 0 : kAuxiliaryGroups;
  static constexpr int kStateGroup = kScoreGroup + (kSums ? 0 : 1);  // sums have no scores
  static constexpr int kRowsGroup = kStateGroup + kBeside;
  static constexpr int kGroups = kRowsGroup + (kHasRows && !kCompact ? 1 : 0);
  static constexpr int kThreads = kGroups * kWarpgroup;
  // Arrivals of readers of what threads write, not the copy engine: all of them, because racecheck does not
  // follow one lane for its warp.
  static constexpr int kAuxiliaryArrivals =
      kBoxesApart || (kSumsOnTheWay && !kGradientSums)
          ? 0  // they have nothing to do, or it is told where they are ready
          : kAuxiliaryWarps * (kHasRows || kGradientSums || (kReverse && kKeepsScales) ? 32 : 1);
  // Of the scores the lanes that read what threads wrote, else one of each warp; Scores::reads() tells.
  static constexpr int kScoreArrivals =
      kNormalize ? kWarpgroup : kQueryGradient ? 32 : kReverse ? (kKeepsScales ? 65 : 44) : 4;
  static constexpr bool kStateReadsTail = kQueryGradient && kWeighsInState;  // its threads, not products
  // Every lane of the warp that writes what threads read; of sums of 16-bit tensors one lane writes.
  static constexpr int kReadyArrivals =
      kAuxiliaryWarps * (kStateReadsTail || kBoxesApart ? 32 : 1) +
      (kReverse || (kGradientSums && kConverted && !kBoxesApart) ? 31 : 0);
  // Whether the state waits for the auxiliary warps at every chunk, not at a tail alone.
  static constexpr bool kAlwaysReady = !kSums || kGradientSums;
  // S^T in accumulators of at most 128 columns, or of 64: a product of more needs more registers than a thread of this many
  // threads starts with.
  static constexpr int kMostPartColumns = kInParts || kTogether > 1 ? kBoxColumns : 128;
  static constexpr int kPartColumns = kHeadDim < kMostPartColumns ? kHeadDim : kMostPartColumns;
  static constexpr int kParts = (kHeadDim + kPartColumns - 1) / kPartColumns;
  static constexpr int kPartRegisters = kPartColumns / 2;
  // Parts that are multiplied as a whole. Sums of boxes have one place, and products of several widths in it make ptxas wait
  // after each (C7511): so the last box is a whole one, too, and what it has beyond the last column is left. Up to D = 96,
  // where that would be a third more at least, none has been seen to wait.
  static constexpr int kWholeParts = kInParts && kHeadDim > 96 ? kParts : kHeadDim / kPartColumns;
  static constexpr int kStateRegisters = kHeadDim / 2;
};

// The same plan where the steps of the reverse differ.
template <class Plan>
struct WithUnevenSteps : Plan {
  static constexpr bool kUneven = true;
};

// The same plan where blocks take turns.
template <class Plan>
struct InTurns : Plan {
  static constexpr bool kTurns = true;
  static constexpr bool kMayRelay = false;
};

}  // namespace hopper
}  // namespace linattn
