// A process may run any number of jobs: the same bits, memory back to where it was, also after a refused or
// failed one.
#include <gtest/gtest.h>

#include <cmath>

#include "backend/cpu/cpu_backend.h"
#include "base/error.h"
#include "exec/engine_fixture.h"
#include "exec/footprint.h"

namespace h3s::test {
namespace {

struct Outputs {
  std::vector<float> video, audio;
  bool operator==(const Outputs&) const = default;
};

class Sessions : public testing::Test {
 protected:
  Outputs run_once(const exec::Dials& dials = {}) {
    exec::Session session(*backend_, books_, file_.get(), run_.layout, {.dials = dials});
    session.set_conditioning(run_.conditioning());
    return forward(session);
  }
  Outputs forward(exec::Session& session) {
    Outputs out{std::vector<float>(run_.inputs.video.size()), std::vector<float>(run_.inputs.audio.size())};
    session.forward(run_.inputs.video.data(), run_.inputs.audio.data(), 0.7f, out.video.data(),
                    out.audio.data());
    return out;
  }

  CheckpointFile file_{small_spec(), true};
  SmallJob run_{small_spec(), ragged_job()};
  mem::Accountant books_{mem::make_heap_allocator(true)};
  std::unique_ptr<kernels::Backend> backend_ = cpu::make_backend(2, books_);
};

TEST_F(Sessions, TheHundredthRunIsTheFirst) {
  const std::int64_t baseline = books_.current_bytes(mem::Space::kDevice);
  const auto plan = [](int i) -> exec::Dials {
    return {.schedule = i % 2 ? exec::Schedule::kFlat : exec::Schedule::kResident};
  };
  const Outputs first = run_once(plan(0));
  run_once(plan(1));
  const std::int64_t peak = books_.peak_bytes(mem::Space::kDevice);
  for (int i = 2; i <= 100; ++i) {
    ASSERT_TRUE(run_once(plan(i)) == first) << i;
    ASSERT_EQ(books_.current_bytes(mem::Space::kDevice), baseline) << i;
  }
  EXPECT_EQ(books_.peak_bytes(mem::Space::kDevice), peak);
}

TEST_F(Sessions, SameBitsTwiceInOneSession) {
  exec::Session session(*backend_, books_, file_.get(), run_.layout, {});
  session.set_conditioning(run_.conditioning());
  const Outputs first = forward(session);
  EXPECT_TRUE(forward(session) == first);
}

TEST_F(Sessions, ARefusedRunLeavesNothingBehind) {
  const Outputs first = run_once();
  const std::int64_t baseline = books_.current_bytes(mem::Space::kDevice);
  books_.set_budget(mem::Space::kDevice, baseline + (1 << 20));
  EXPECT_THROW(run_once(), Error);
  EXPECT_EQ(books_.current_bytes(mem::Space::kDevice), baseline);
  EXPECT_EQ(books_.current_bytes(mem::Space::kPinned), 0);
  books_.set_budget(mem::Space::kDevice, mem::kUnlimited);
  EXPECT_TRUE(run_once() == first);
}

TEST_F(Sessions, AnExceptionFromACallbackLeavesNothingBehind) {
  const Outputs first = run_once();
  const std::int64_t baseline = books_.current_bytes(mem::Space::kDevice);
  {
    exec::Session session(*backend_, books_, file_.get(), run_.layout, {});
    session.set_conditioning(run_.conditioning());
    session.on_block([](std::int64_t, std::int64_t) { throw Error(Status::kIo, "stop"); });
    EXPECT_THROW(forward(session), Error);
  }
  EXPECT_EQ(books_.current_bytes(mem::Space::kDevice), baseline);
  EXPECT_TRUE(run_once() == first);
}

TEST_F(Sessions, ForwardBeforeConditioningIsRefused) {
  exec::Session session(*backend_, books_, file_.get(), run_.layout, {});
  EXPECT_THROW(forward(session), Error);
}

TEST_F(Sessions, NegativeDialsAreRefusedByName) {
  for (const auto& [name, dials] :
       std::vector<std::pair<std::string, exec::Dials>>{{"q_chunk", {.q_chunk = -1}},
                                                        {"kv_chunk", {.kv_chunk = -1}},
                                                        {"mlp_chunk", {.mlp_chunk = -5}},
                                                        {"head_chunk", {.head_chunk = -1}},
                                                        {"head_group", {.head_group = -2}},
                                                        {"min_tokens", {.min_tokens = -1}}})
    try {
      run_once(dials);
      ADD_FAILURE() << name << " not refused";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(name), std::string::npos) << e.what();
    }
}

TEST_F(Sessions, BlocksAreReportedInOrder) {
  exec::Session session(*backend_, books_, file_.get(), run_.layout, {});
  session.set_conditioning(run_.conditioning());
  std::vector<std::int64_t> seen;
  session.on_block([&](std::int64_t i, std::int64_t layers) {
    seen.push_back(i);
    EXPECT_EQ(layers, 2);
  });
  forward(session);
  EXPECT_EQ(seen, (std::vector<std::int64_t>{0, 1}));
}

TEST_F(Sessions, TheDefinitionBackendGivesTheSameBits) {
  const Outputs vectorised = run_once();
  const auto definition = cpu::make_definition_backend();
  exec::Session session(*definition, books_, file_.get(), run_.layout, {});
  session.set_conditioning(run_.conditioning());
  EXPECT_TRUE(forward(session) == vectorised);
}

}  // namespace
}  // namespace h3s::test
