#include "sample/job.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "inputs_file.h"

namespace h3s::sample {
namespace {

using test::floats;
using test::InputsFile;

void add_everything(InputsFile& file) {
  file.about["keyframes"] = {{{"frame", 0}}};
  file.about["references"] = {{{"kind", "video"}}, {{"kind", "audio"}}};
  file.tensors["keyframe.0.latent"] = floats({1, 3, 1, 4, 5});
  file.tensors["reference.0.latent"] = floats({1, 3, 40, 12, 8});
  file.tensors["reference.0.audio"] = floats({1, 5, 2, 70});
  file.tensors["reference.1.audio"] = floats({1, 5, 2, 300});
  file.tensors["initial.video"] = floats({1, 3, 2, 4, 5});
  file.tensors["initial.audio"] = floats({1, 5, 2, 6});
}

Inputs open(const InputsFile& file) {
  return Inputs::open(file.write(), test::small_model());
}

struct BytesCase {
  bool conditions, resuming;
  double visual_aug, audio_aug;
};

class JobBytes : public testing::TestWithParam<BytesCase> {};

TEST_P(JobBytes, AreKnownBefore) {
  InputsFile file;
  if (GetParam().conditions) add_everything(file);
  const Inputs inputs = open(file);
  JobOptions options;
  options.timesteps.visual_aug = GetParam().visual_aug;
  options.timesteps.audio_aug = GetParam().audio_aug;
  const Job::HostBytes expected = Job::host_bytes(inputs, options, GetParam().resuming);
  mem::Accountant accountant(mem::make_heap_allocator(true));
  {
    const Job job(inputs, options, GetParam().resuming, accountant);
    EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), expected.held);
    EXPECT_EQ(accountant.peak_bytes(mem::Space::kHost), expected.peak);
  }
  EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, JobBytes,
                         testing::Values(BytesCase{false, false, 0.999, 1.0},
                                         BytesCase{true, false, 0.999, 1.0}, BytesCase{true, false, 1.0, 0.9},
                                         BytesCase{true, true, 0.5, 0.5}));

TEST(Job, PartialDenoiseNeedsInitialLatents) {
  InputsFile file;
  const Inputs inputs = open(file);
  mem::Accountant accountant(mem::make_heap_allocator());
  JobOptions options;
  options.denoise = 0.5;
  try {
    Job job(inputs, options, false, accountant);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("initial.video"), std::string::npos);
  }
  EXPECT_EQ(accountant.current_bytes(mem::Space::kHost), 0);
}

TEST(Job, OptionsThatCannotBeRunAreRefusedWithoutMemory) {
  InputsFile file;
  const Inputs inputs = open(file);
  EXPECT_NO_THROW(Job::check(inputs, {}));
  std::vector<JobOptions> bad(6);
  bad[0].steps = 0;
  bad[1].denoise = std::numeric_limits<double>::quiet_NaN();
  bad[2].timesteps.shift_video = std::numeric_limits<double>::infinity();
  bad[3].timesteps.shift_audio = std::numeric_limits<double>::quiet_NaN();
  bad[4].timesteps.visual_aug = std::numeric_limits<double>::quiet_NaN();
  bad[5].timesteps.audio_aug = -0.5;
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(Job::check(inputs, bad[i]), Error) << i;
    mem::Accountant accountant(mem::make_heap_allocator());
    EXPECT_THROW(Job(inputs, bad[i], false, accountant), Error) << i;
    EXPECT_EQ(accountant.peak_bytes(mem::Space::kHost), 0) << i;
  }
}

TEST(Job, EverySettingIsInTheDescription) {
  const Settings plain = describe({});
  std::vector<JobOptions> changed(10);
  changed[0].seed = 1;
  changed[1].scheduler = Scheduler::kBeta;
  changed[2].steps = 9;
  changed[3].denoise = 0.75;
  changed[4].compute = DType::kF32;
  changed[5].timesteps.shift_video = 6;
  changed[6].timesteps.shift_audio = 6;
  changed[7].timesteps.visual_aug = 0.99;
  changed[8].timesteps.audio_aug = 0.99;
  changed[9].timesteps.double_precision = true;
  for (std::size_t i = 0; i < changed.size(); ++i) EXPECT_NE(describe(changed[i]), plain) << i;
}

}  // namespace
}  // namespace h3s::sample
