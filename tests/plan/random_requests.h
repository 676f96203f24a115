// Random jobs, machines and budgets for the planner's property tests.
#pragma once

#include <fmt/format.h>

#include <memory>
#include <random>
#include <string>

#include "plan/cards.h"
#include "plan/plan.h"

namespace h3s::test {

// A request and what it refers to.
struct RandomRequest {
  checkpoint::Checkpoint checkpoint;
  spec::Layout layout;
  plan::Request request;
  std::string text;  // for messages

  RandomRequest(checkpoint::Checkpoint table, const spec::JobSpec& job, const plan::Calibration& calibration,
                bool device_is_host)
      : checkpoint(std::move(table)),
        layout(job),
        request{
            .checkpoint = checkpoint,
            .layout = layout,
            .session = {},
            .device_is_host = device_is_host,
            .holdings = {{mem::Space::kHost, 12345, "sampler"}, {mem::Space::kDevice, 7 << 20, "context"}},
            .budgets = {},
            .calibration = calibration} {}
};

inline std::int64_t between(std::mt19937_64& random, std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(high - low + 1));
}

// A number that is as likely to have few digits as many.
inline std::int64_t log_between(std::mt19937_64& random, double low, double high) {
  return static_cast<std::int64_t>(
      std::exp(std::uniform_real_distribution(std::log(low), std::log(high))(random)));
}

// A network of one of some sizes, without data; any card or a processor.
inline std::unique_ptr<RandomRequest> random_request(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  spec::ModelSpec spec;
  spec.heads = between(random, 1, 20);
  spec.hidden = 256 * between(random, 1, 8);
  spec.ffn = 512 * between(random, 1, 8);
  spec.layers = between(random, 1, 24);
  spec.refiner_layers = between(random, 0, 2);
  spec.text_dim = 128;
  const bool int8 = random() % 2 == 0;
  const spec::JobSpec job{.text_len = between(random, 1, 600),
                          .latent_t = log_between(random, 1, 400),
                          .latent_h = between(random, 2, 60),
                          .latent_w = between(random, 2, 60),
                          .audio_t = log_between(random, 1, 3000)};
  const bool on_host = random() % 3 == 0;
  const auto cards = plan::cards();
  const plan::Card& card = cards[random() % cards.size()];
  auto result = std::make_unique<RandomRequest>(
      checkpoint::Checkpoint::without_data(
          spec, int8 ? checkpoint::WeightFormat::kInt8Tensorwise : checkpoint::WeightFormat::kBF16),
      job, on_host ? plan::expect_cpu(2) : plan::expect(card), on_host);
  result->request.weights_cached = random() % 4 != 0;
  result->text =
      fmt::format("seed {}: {} tokens, {} layers, {} heads, hidden {}, {}, {}", seed, result->layout.tokens(),
                  spec.layers, spec.heads, spec.hidden, int8 ? "int8" : "bf16", on_host ? "cpu" : card.name);
  return result;
}

}  // namespace h3s::test
