// One block of real width under the resident schedule, of any weight format, with or without a LoRA of every
// layer: its time, and where that goes.
//
// Weights and activations are synthetic, of the sizes that a trained block has: every linear's output near 1.
// The block is checked on few tokens against the definitions of this device, and at full length against
// itself under other chunks, bit for bit. Floating-point products have an order of sums of their own and are
// checked by `--filter linear`; here the plain ones stand in for them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "backend/select.h"
#include "device_memory.h"
#include "exec/sequence.h"
#include "timed_backend.h"

namespace h3s::bench {
namespace {

constexpr std::int64_t kRotateGroup = 256;
constexpr double kTargetPercent = 110;  // of attention and linears
constexpr std::int64_t kChunk = 16384;  // rows, on a GPU

// Text alone but for the smallest streams: what a token is changes no time.
spec::Layout layout_of(std::int64_t tokens) {
  constexpr std::int64_t kVideoRows = 1, kAudioRows = 2;
  spec::JobSpec job;
  job.text_len = tokens - kVideoRows - kAudioRows;
  job.latent_t = 1, job.latent_h = job.latent_w = 2, job.audio_t = 1;
  return spec::Layout(job);
}

class Block {
 public:
  explicit Block(Context& context)
      : memory_(context), format_(context.options().block_format), rank_(context.options().lora_rank) {
    weights_.qkv = linear(3 * spec_.inner(), spec_.hidden);
    weights_.out = linear(spec_.hidden, spec_.inner());
    weights_.fc1 = linear(2 * spec_.ffn, spec_.hidden);
    weights_.fc2 = linear(spec_.hidden, spec_.ffn);
    weights_.norm1 = near_one(spec_.hidden);
    weights_.norm2 = near_one(spec_.hidden);
    weights_.q_norm = near_one(spec_.head_dim);
    weights_.k_norm = near_one(spec_.head_dim);
    std::vector<float> inv_freq;
    for (std::int64_t i = 0; i < spec::kRopeFrequencies; ++i)
      inv_freq.push_back(std::pow(10000.0f, -static_cast<float>(i) / spec::kRopeFrequencies));
    inv_freq_ = memory_.make_floats(inv_freq);
    table_ = memory_.make(spec::kModulationParts * spec_.hidden * 2, Fill::kBf16, ++seed_);
  }

  const spec::ModelSpec& spec() const { return spec_; }
  std::int64_t rank() const { return rank_; }
  DeviceMemory& memory() { return memory_; }

  void run(exec::Sequence& sequence) const {
    const kernels::ModSegment all{0, sequence.tokens(), 0};
    sequence.run_block(
        {.weights = weights_, .modulation = {&all, 1, 0, table_, spec::kModulationParts * spec_.hidden}});
  }

  // Rotation and x as a step begins with them.
  void prepare(exec::Sequence& sequence) {
    sequence.prepare_rotation(layout_of(sequence.tokens()), inv_freq_);
    memory_.fill(sequence.x().home(), sequence.tokens() * sequence.x().row_bytes(), Fill::kBf16, 1000);
  }
  std::vector<BF16> rows(exec::Sequence& sequence, std::int64_t first, std::int64_t count) {
    std::vector<BF16> host(static_cast<std::size_t>(count * spec_.hidden));
    memory_.read(host.data(), static_cast<std::byte*>(sequence.x().home()) + first * sequence.x().row_bytes(),
                 count * sequence.x().row_bytes());
    return host;
  }

 private:
  model::LinearWeight linear(std::int64_t n, std::int64_t k) {
    model::LinearWeight weight{.n = n, .k = k};
    const double size = 1 / std::sqrt(static_cast<double>(k));  // with it sums of k terms have an RMS of 1
    if (format_ == "bf16")
      weight.data = numbers(n * k, size);
    else if (format_ == "int8_tensorwise" || format_ == "asym_w4a8_int8" || format_ == "convrot_w4a4")
      set_codes(weight, size);
    else
      set_float_codes(weight, size);
    if (rank_ > 0) weight.low_rank = low_rank(n, k);
    return weight;
  }

  // Codes are uniform with an RMS of 73.
  void set_codes(model::LinearWeight& weight, double size) {
    const std::vector<float> scale(static_cast<std::size_t>(weight.n), static_cast<float>(size / 73));
    weight.data = memory_.make(weight.n * weight.k, Fill::kCodes, ++seed_);
    weight.dtype = DType::kI8;
    weight.scale = memory_.make_floats(scale);
    weight.rotate_group = kRotateGroup;
    weight.fused_swiglu = format_ == "int8_tensorwise";
    if (format_ == "convrot_w4a4") weight.row_code = kernels::RowCode::kInt4;
  }

  // What codes decode to, with input scales that hold activations of an RMS of 1.
  void set_float_codes(model::LinearWeight& weight, double size) {
    weight.data = memory_.make(weight.n * weight.k * 2, Fill::kBf16, ++seed_);
    weight.tensor_scale = static_cast<float>(size);
    weight.float_code = format_ == "mxfp8"   ? kernels::FloatCode::kMxfp8
                        : format_ == "nvfp4" ? kernels::FloatCode::kNvfp4
                                             : kernels::FloatCode::kE4M3;
    weight.input_scale = format_ == "mxfp8" ? 1.0f : format_ == "nvfp4" ? 0.002f : 0.02f;
  }

  model::LowRank low_rank(std::int64_t n, std::int64_t k) {
    const auto k_size = 1 / std::sqrt(static_cast<double>(k));
    const auto rank_size = 0.3 / std::sqrt(static_cast<double>(rank_));
    return {.a = numbers(rank_ * k, k_size), .b = numbers(n * rank_, rank_size), .rank = rank_};
  }

  // bf16 on the device, repeating after a prime number of them.
  void* numbers(std::int64_t count, double size) {
    constexpr std::int64_t kPeriod = 1048573;
    const std::vector<float> some = random_floats(std::min(kPeriod, count), ++seed_);
    std::vector<BF16> host(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < host.size(); ++i)
      host[i] = i < some.size() ? h3s::to_bf16(some[i] * static_cast<float>(size)) : host[i - some.size()];
    void* device = memory_.make(count * 2, Fill::kPoison);
    memory_.write(device, host.data(), count * 2);
    return device;
  }
  const float* near_one(std::int64_t count) {
    std::vector<float> values = random_floats(count, ++seed_);
    for (float& v : values) v = 1.0f + 0.1f * v;
    return memory_.make_floats(values);
  }

  spec::ModelSpec spec_;
  DeviceMemory memory_;
  std::string format_;
  std::int64_t rank_;
  model::BlockWeights weights_;
  float* inv_freq_ = nullptr;
  void* table_ = nullptr;
  std::uint64_t seed_ = 100;
};

exec::Sequence make_sequence(Context& context, kernels::Backend& backend, const Block& block,
                             std::int64_t tokens, const exec::Dials& dials) {
  return exec::Sequence(
      {backend, context.accountant()}, block.spec(), DType::kBF16, tokens, dials,
      {.rotates = true, .low_rank_row_bytes = block.rank() * static_cast<std::int64_t>(sizeof(BF16))});
}

std::vector<BF16> output(Context& context, kernels::Backend& backend, Block& block, std::int64_t tokens,
                         const exec::Dials& dials, std::int64_t first, std::int64_t count) {
  exec::Sequence sequence = make_sequence(context, backend, block, tokens, dials);
  block.prepare(sequence);
  block.run(sequence);
  backend.sync(backend.record(kernels::Queue::kCompute));
  return block.rows(sequence, first, count);
}

double rel_rms(const std::vector<BF16>& a, const std::vector<BF16>& b) {
  double error = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(to_float(a[i])), y = static_cast<double>(to_float(b[i]));
    error += (x - y) * (x - y);
    norm += y * y;
  }
  return std::sqrt(error / norm);
}

// Every op of `fast` but attention, whose tensor cores sum in an order of their own: that is held to a bound
// here, and the plain one's result goes on, so that all the rest can be compared bit for bit. Floating-point
// linears are the plain ones.
class PlainAttention final : public kernels::ForwardingBackend {
 public:
  PlainAttention(Context& context, kernels::Backend& plain, DeviceMemory& memory)
      : ForwardingBackend(context.backend()), plain_(plain), memory_(memory) {}

  // The two backends have queues of their own, which know nothing of each other.
  void linear(const kernels::LinearArgs& args) override {
    inner().sync(inner().record(kernels::Queue::kCompute));
    plain_.linear(args);
    plain_.sync(plain_.record(kernels::Queue::kCompute));
  }
  void attention(const kernels::AttentionArgs& args) override {
    inner().attention(args);
    const std::vector<BF16> fast = result(args);
    plain_.attention(args);
    plain_.sync(plain_.record(kernels::Queue::kCompute));
    // P and O are rounded to bf16 in both, 2.3e-3 of the RMS each as seen in float64; 2^-7 is twice their
    // sum.
    const double error = rel_rms(fast, result(args));
    check(error <= 0x1p-7, fmt::format("attention in a block: relative RMS difference {}", error));
  }

 private:
  // O is dense under the resident schedule.
  std::vector<BF16> result(const kernels::AttentionArgs& args) {
    std::vector<BF16> host(static_cast<std::size_t>(args.q_tokens * args.o_token_stride));
    memory_.read(host.data(), args.o, static_cast<std::int64_t>(host.size() * sizeof(BF16)));
    return host;
  }

  kernels::Backend& plain_;
  DeviceMemory& memory_;
};

bool same_bits(const std::vector<BF16>& a, const std::vector<BF16>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](BF16 x, BF16 y) { return x.bits == y.bits; });
}

void check_against_plain(Context& context, Block& block) {
  const std::int64_t tokens = context.on_gpu() ? 259 : 4;  // the CPU's plain loops take a second for four
  const auto plain = context.make_plain_backend();
  PlainAttention mixed(context, *plain, block.memory());
  const std::vector<BF16> want = output(context, *plain, block, tokens, {}, 0, tokens);
  check(same_bits(output(context, mixed, block, tokens, {}, 0, tokens), want),
        "a block has the bits of the plain kernels, but for attention and floating-point linears");
}

void check_chunks(Context& context, Block& block, std::int64_t tokens, const exec::Dials& dials) {
  const std::int64_t sampled = std::min<std::int64_t>(tokens, 300);
  const auto last = [&](const exec::Dials& d) {
    return output(context, context.backend(), block, tokens, d, tokens - sampled, sampled);
  };
  const exec::Dials other{.q_chunk = tokens / 3 + 1, .kv_chunk = tokens / 5 + 1, .mlp_chunk = tokens / 4 + 1};
  check(same_bits(last(dials), last(other)), "a block has the same bits in other chunks");
}

// What a layer calls the op: linears by their size, qkv_proj by any of its columns.
std::string part_name(const std::string& op, const Block& block) {
  const spec::ModelSpec& spec = block.spec();
  if (!op.starts_with("linear")) return op;
  const auto is = [&](std::int64_t n, std::int64_t k) { return op.ends_with(fmt::format(" {}x{}", n, k)); };
  if (block.rank() > 0) {
    if (op.ends_with(fmt::format("x{}", block.rank()))) return "LoRA, B";
    if (op.find(fmt::format(" {}x", block.rank())) != std::string::npos) return "LoRA, A";
  }
  if (is(spec.hidden, spec.inner())) return "out_proj";
  if (is(2 * spec.ffn, spec.hidden)) return "fc1";
  if (is(spec.hidden, spec.ffn)) return "fc2";
  return "qkv_proj";
}

bool is_product(const std::string& op) {
  return op == "attention" || op.starts_with("linear");
}

constexpr const char* kLinears = "linears with their quantisers";

// Operations of a part of the block, without a LoRA's; 0 for what is bound by memory.
double operations(const std::string& part, const spec::ModelSpec& spec, double tokens) {
  const auto product = [&](std::int64_t n, std::int64_t k) {
    return 2.0 * tokens * static_cast<double>(n) * static_cast<double>(k);
  };
  if (part == "attention") return 4.0 * tokens * tokens * static_cast<double>(spec.inner());
  if (part == "qkv_proj") return product(3 * spec.inner(), spec.hidden);
  if (part == "out_proj") return product(spec.hidden, spec.inner());
  if (part == "fc1") return product(2 * spec.ffn, spec.hidden);
  if (part == "fc2") return product(spec.hidden, spec.ffn);
  if (part == kLinears) {
    double sum = 0;
    for (const char* linear : {"qkv_proj", "out_proj", "fc1", "fc2"}) sum += operations(linear, spec, tokens);
    return sum;
  }
  return 0;
}

using Times = std::vector<double>;  // seconds, one a round

struct Measured {
  Times total, products, quantisers;   // total: runs without stamps in between
  Times linears;                       // with their quantisers and, where there is one, a LoRA's products
  std::map<std::string, Times> parts;  // by name
};

Measured measure_block(Context& context, Block& block, std::int64_t tokens, const exec::Dials& dials) {
  TimedBackend timed(context.backend());
  exec::Sequence sequence = make_sequence(context, timed, block, tokens, dials);
  block.prepare(sequence);
  Measured m;
  context.warm_up([&] { block.run(sequence); });
  for (int round = 0; round < context.options().rounds; ++round) {
    m.total.push_back(context.elapsed_s([&] { block.run(sequence); }));
    timed.start();
    block.run(sequence);
    double products = 0, quantisers = 0, attention = 0;
    std::map<std::string, double> parts;
    for (const auto& [op, ms] : timed.stop()) {
      parts[part_name(op, block)] += ms * 1e-3;
      if (is_product(op)) products += ms * 1e-3;
      if (op == "attention") attention += ms * 1e-3;
      if (op.ends_with("quantize_rows") || op == "quantize_float") quantisers += ms * 1e-3;
    }
    for (const auto& [name, seconds] : parts) m.parts[name].push_back(seconds);
    m.products.push_back(products);
    m.quantisers.push_back(quantisers);
    m.linears.push_back(products + quantisers - attention);
  }
  return m;
}

void add_rows(Context& context, const Measured& m, const spec::ModelSpec& spec, std::int64_t tokens,
              const exec::Dials& dials) {
  const Timing total = summarize(m.total);
  const bench::Options& options = context.options();
  std::string shape = fmt::format("tokens {}", tokens);
  if (options.block_format != kDefaultBlockFormat) shape += ", " + options.block_format;
  if (options.lora_rank > 0) shape += fmt::format(", LoRA of rank {}", options.lora_rank);
  const auto add = [&](const std::string& name, const Timing& t) {
    nlohmann::json row{{"group", "block"},         {"name", name},
                       {"shape", shape},           {"unit", "ms"},
                       {"rate", t.median_s * 1e3}, {"best_rate", t.best_s * 1e3},
                       {"spread", t.spread},       {"share", t.median_s / total.median_s}};
    const double work = operations(name, spec, static_cast<double>(tokens));
    if (work > 0) row["gops"] = work / t.median_s * 1e-9;
    if (name == "total") row["plan"] = dials.describe();
    context.append(std::move(row));
  };
  const auto add_percent = [&](const std::string& name, double of_s) {
    context.append({{"group", "block"},
                    {"name", name},
                    {"shape", shape},
                    {"unit", "%"},
                    {"rate", 100 * total.median_s / of_s},
                    {"spread", total.spread},
                    {"target", kTargetPercent}});
  };
  add("total", total);
  std::vector<std::pair<std::string, Timing>> parts;
  for (const auto& [name, times] : m.parts) parts.emplace_back(name, summarize(times));
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.second.median_s > b.second.median_s; });
  for (const auto& [name, timing] : parts) add(name, timing);
  add(kLinears, summarize(m.linears));
  const double products_s = summarize(m.products).median_s;
  add_percent("total, of attention + linears", products_s);
  add_percent("total, of attention + linears with their quantisers",
              products_s + summarize(m.quantisers).median_s);
}

}  // namespace

void bench_block(Context& context) {
  const std::int64_t tokens = context.options().tokens;
  Block block(context);
  check_against_plain(context, block);
  const exec::Dials dials = exec::effective_dials(
      context.on_gpu() ? exec::Dials{.q_chunk = kChunk, .kv_chunk = kChunk, .mlp_chunk = kChunk}
                       : exec::Dials{},
      block.spec(), tokens);
  check_chunks(context, block, tokens, dials);
  add_rows(context, measure_block(context, block, tokens, dials), block.spec(), tokens, dials);
}

}  // namespace h3s::bench
