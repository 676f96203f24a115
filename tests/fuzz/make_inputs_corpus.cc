// make_inputs_corpus DIR: small valid inputs files, from plain to every kind of condition, for inputs_fuzz.
#include <cstdio>
#include <filesystem>

#include "sample/inputs_file.h"

namespace {

using h3s::test::floats;
using h3s::test::InputsFile;
using h3s::test::integers;

InputsFile plain() {
  InputsFile file;
  file.about = {{"version", 1}, {"latent_t", 1}, {"latent_h", 2}, {"latent_w", 3}, {"audio_t", 2}};
  file.tensors["text"] = floats({2, 4});
  return file;
}

InputsFile tagged() {
  InputsFile file = plain();
  file.tensors["text"] = floats({1, 2, 4});
  file.tensors["text_token_tags"] = integers({0, 1});
  return file;
}

InputsFile with_conditions() {
  InputsFile file = plain();
  file.about["keyframes"] = {{{"frame", 0}}, {{"frame", 3}}};
  file.about["references"] = {{{"kind", "image"}}, {{"kind", "audio"}}, {{"kind", "video"}}};
  file.tensors["keyframe.0.latent"] = floats({1, 2, 1, 2, 3});
  file.tensors["keyframe.1.audio"] = floats({1, 2, 2, 2});
  file.tensors["reference.0.latent"] = floats({1, 2, 1, 2, 2});
  file.tensors["reference.1.audio"] = floats({1, 2, 2, 1});
  file.tensors["reference.2.latent"] = floats({1, 2, 2, 2, 2});
  file.tensors["reference.2.audio"] = floats({1, 2, 2, 1});
  file.tensors["initial.video"] = floats({1, 2, 1, 2, 3});
  file.tensors["initial.audio"] = floats({1, 2, 2, 2});
  return file;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_inputs_corpus DIR\n");
    return 2;
  }
  const std::filesystem::path directory = argv[1];
  std::filesystem::create_directories(directory);
  std::filesystem::copy_file(plain().write(), directory / "plain");
  std::filesystem::copy_file(tagged().write(), directory / "tagged");
  std::filesystem::copy_file(with_conditions().write(), directory / "conditions");
}
