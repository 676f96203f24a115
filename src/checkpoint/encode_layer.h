// A whole layer through its quantiser, in pieces, wherever its rows come from.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "base/float16.h"
#include "checkpoint/encode.h"

namespace h3s::checkpoint {

// Row `row` of a matrix into out [k]. Called from several threads at a time.
using ReadRow = std::function<void(std::int64_t row, std::span<BF16> out)>;
// The next bytes of a file; from the calling thread.
using WriteBytes = std::function<void(const void* data, std::size_t bytes)>;

// Rows of `row_bytes` that a thread makes at a time: 4 MiB of them, far above the cost of starting it.
std::int64_t rows_a_thread(std::int64_t row_bytes);

// The largest magnitude of a matrix [n, k]. A maximum has no order: any number of threads gives the same.
float largest_magnitude(std::int64_t n, std::int64_t k, int threads, const ReadRow& read);

// Writes what encoder.tensors() declares, in that order: n rows read one after another, then companions and
// tag. Memory: 4 MiB and a row a thread; the bytes do not depend on `threads`.
void encode_layer(LayerEncoder& encoder, std::int64_t n, std::int64_t k, int threads, const ReadRow& read,
                  const WriteBytes& write);

}  // namespace h3s::checkpoint
