// In which order the rows of fused matrices lie, told from the weights alone: keys and shapes are the same
// either way, and the wrong way gives noise.
//
// qkv_proj: all q, all k, all v is expected; the vendor's shards store q, k, v of head 0, then of head 1, ...
// Training leaves q, k and v rows different: how large they are, and how that depends on the place in the
// head (rotated or not, fast or slow). For each group of 128 rows three such features are taken; Wilks' ratio
// says how much of their spread a labelling of the groups explains, its chi-square how surely.
//
// fc1: gate rows are expected before up rows. Changing the sign of an up row and of its column of fc2 changes
// nothing, and initialisation and training know no sign either: the sum of up rows is as long as that of rows
// under random signs. SiLU breaks this for gate rows, which share a direction as soon as their outputs have a
// mean. So a half whose sum is far longer than under random signs is the gate.
//
// Random weights have neither trait, and then the answer is kUnclear. NOTE: tried on made-up weights alone.
#pragma once

#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/findings.h"

namespace h3s::checkpoint {

enum class RowOrder { kUnclear, kExpected, kOther };

struct OrderVerdict {
  RowOrder order = RowOrder::kUnclear;
  double confidence = 0;  // of `order`, 0 to 1; see row_order.cc for what it assumes
  int blocks = 0;         // that were looked at; all of them agree
};

// Both read a sample of rows of at most `blocks` blocks, spread over the network: about 20 MB of an int8
// block of real size, in tens of milliseconds. Memory: about 1 MB.
OrderVerdict qkv_order(const Checkpoint& checkpoint, int blocks);
OrderVerdict fc1_order(const Checkpoint& checkpoint, int blocks);

// One finding on each: a warning for kOther, a note otherwise.
std::vector<Finding> describe_row_orders(const Checkpoint& checkpoint, int blocks);

}  // namespace h3s::checkpoint
