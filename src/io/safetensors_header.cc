#include "io/safetensors_header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "io/json.h"

namespace h3s::io {
namespace {

constexpr std::size_t kMaxRank = 16;  // H3 has rank 2; the bound keeps a shape from growing without end

// A state machine over the events of the parser, so that what a tree would hide is seen: keys given
// twice, 1.0 where 1 is meant, negative numbers.
class HeaderHandler : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderHandler(Header& header) : header_(header) {}

  std::string complaint() const { return key_ + ": " + reason_; }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        return enter(State::kTop);
      case State::kTop:
        return enter(key_ == kMetadataKey ? State::kMetadata : State::kTensor);
      default:
        return unexpected("an object");
    }
  }

  bool end_object() override {
    switch (state_) {
      case State::kTop:
        return enter(State::kEnd);
      case State::kMetadata:
        return enter(State::kTop);
      default:
        return finish_tensor();
    }
  }

  bool key(string_t& name) override {
    if (state_ == State::kTop) return start_entry(name);
    if (state_ == State::kMetadata) {
      metadata_key_ = name;
      return header_.metadata.count(name) == 0 ||
             refuse(fmt::format("\"{}\" is given twice", printable(name)));
    }
    return start_field(name);
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return header_.metadata.emplace(metadata_key_, value).second;
    if (state_ != State::kTensor || field_ != Field::kDType) return unexpected("a string");
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) return refuse(fmt::format("unknown dtype \"{}\"", printable(value)));
    tensor_.dtype = *dtype;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kTensor || field_ == Field::kDType) return unexpected("an array");
    return enter(State::kArray);
  }
  bool end_array() override { return enter(State::kTensor); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kArray) return unexpected("a number");
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      return refuse(fmt::format("{} holds {}, which is out of range", field_name(), value));
    if (numbers() == max_numbers())
      return refuse(fmt::format("{} has more than {} numbers", field_name(), max_numbers()));
    if (field_ == Field::kShape) tensor_.shape.push_back(static_cast<std::int64_t>(value));
    if (field_ == Field::kOffsets) (num_offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
    return true;
  }
  bool number_integer(number_integer_t value) override {
    return state_ == State::kArray
               ? refuse(fmt::format("{} holds the negative number {}", field_name(), value))
               : unexpected("a number");
  }
  bool number_float(number_float_t, const string_t& text) override {
    return state_ == State::kArray
               ? refuse(fmt::format("{} holds {}, which is not an integer", field_name(), printable(text)))
               : unexpected("a number");
  }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool null() override { return unexpected("null"); }
  bool binary(binary_t&) override { return unexpected("binary data"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    key_ = "header";
    return refuse(fmt::format("not valid UTF-8 JSON at byte {} of the header", position));
  }

 private:
  enum class State { kStart, kTop, kMetadata, kTensor, kArray, kEnd };
  enum class Field { kDType, kShape, kOffsets };

  bool enter(State state) {
    if (state == State::kTop) key_ = "header";
    state_ = state;
    return true;
  }
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  bool unexpected(const char* what) { return refuse(fmt::format("{} where the format has none", what)); }

  bool start_entry(const std::string& name) {
    key_ = printable(name);
    if (name == kMetadataKey) return !std::exchange(seen_metadata_, true) || refuse("is given twice");
    tensor_ = TensorInfo{};
    tensor_.name = name;
    seen_fields_ = 0;
    num_offsets_ = 0;
    return true;
  }

  bool start_field(const std::string& name) {
    for (const Field field : {Field::kDType, Field::kShape, Field::kOffsets}) {
      field_ = field;
      if (name != field_name()) continue;
      const unsigned bit = 1u << static_cast<unsigned>(field);
      if (seen_fields_ & bit) return refuse(fmt::format("{} is given twice", name));
      seen_fields_ |= bit;
      return true;
    }
    return refuse(fmt::format("unknown field \"{}\"", printable(name)));
  }

  bool finish_tensor() {
    for (const Field field : {Field::kDType, Field::kShape, Field::kOffsets}) {
      field_ = field;
      if (!(seen_fields_ & 1u << static_cast<unsigned>(field)))
        return refuse(fmt::format("{} is missing", field_name()));
    }
    if (num_offsets_ != 2) return refuse("data_offsets must hold two numbers");
    const std::optional<std::uint64_t> bytes = tensor_bytes(tensor_.dtype, tensor_.shape);
    if (!bytes) return refuse("the size of its shape overflows");
    if (tensor_.begin > tensor_.end)
      return refuse(fmt::format("data_offsets [{}, {}] run backwards", tensor_.begin, tensor_.end));
    if (tensor_.bytes() != *bytes)
      return refuse(
          fmt::format("dtype and shape need {} bytes, data_offsets span {}", *bytes, tensor_.bytes()));
    header_.tensors.push_back(std::move(tensor_));
    return enter(State::kTop);
  }

  const char* field_name() const {
    constexpr const char* kNames[] = {"dtype", "shape", "data_offsets"};
    return kNames[static_cast<std::size_t>(field_)];
  }
  std::size_t numbers() const { return field_ == Field::kShape ? tensor_.shape.size() : num_offsets_; }
  std::size_t max_numbers() const { return field_ == Field::kShape ? kMaxRank : 2; }

  Header& header_;
  State state_ = State::kStart;
  Field field_ = Field::kDType;
  TensorInfo tensor_;
  unsigned seen_fields_ = 0;  // one bit a Field
  std::size_t num_offsets_ = 0;
  bool seen_metadata_ = false;
  std::string metadata_key_;
  std::string key_ = "header";  // what a complaint is about
  std::string reason_ = "not a JSON object";
};

void index_names(const std::string& path, Header& header) {
  header.by_name.resize(header.tensors.size());
  std::iota(header.by_name.begin(), header.by_name.end(), 0u);
  const auto name = [&](std::uint32_t idx) -> const std::string& { return header.tensors[idx].name; };
  std::sort(header.by_name.begin(), header.by_name.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
  const auto twice = std::adjacent_find(header.by_name.begin(), header.by_name.end(),
                                        [&](std::uint32_t a, std::uint32_t b) { return name(a) == name(b); });
  if (twice != header.by_name.end())
    fail(Status::kBadFile, "{}: {}: the key is given twice", path, printable(name(*twice)));
}

void check_tiling(const std::string& path, Header& header) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : header.tensors) {
    if (tensor.begin > end)
      fail(Status::kBadFile,
           "{}: {}: starts at byte {} of the data, {} bytes after the tensor before it (a hole)", path,
           printable(tensor.name), tensor.begin, tensor.begin - end);
    if (tensor.begin < end)
      fail(Status::kBadFile,
           "{}: {}: starts at byte {} of the data and overlaps the tensor before it by {} bytes", path,
           printable(tensor.name), tensor.begin, end - tensor.begin);
    end = tensor.end;
  }
  header.data_bytes = end;
}

}  // namespace

std::int64_t TensorInfo::elements() const {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, const std::vector<std::int64_t>& shape) {
  // Zero first: [2^40, 2^40, 0] holds nothing, but its partial product would overflow.
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t d) { return d < 0; })) return std::nullopt;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  auto bytes = static_cast<std::int64_t>(dtype_size(dtype));
  for (const std::int64_t dim : shape)
    if (__builtin_mul_overflow(bytes, dim, &bytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

Header parse_header(const std::string& path, std::string_view json) {
  if (json.empty() || json.front() != '{')
    fail(Status::kBadFile, "{}: header: does not start with '{{'", path);
  // The JSON library takes a NUL byte for the end of its input.
  if (json.find('\0') != json.npos) fail(Status::kBadFile, "{}: header: holds a NUL byte", path);
  Header header;
  HeaderHandler handler(header);
  if (!nlohmann::json::sax_parse(json.begin(), json.end(), &handler))
    fail(Status::kBadFile, "{}: {}", path, handler.complaint());
  std::sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  index_names(path, header);
  check_tiling(path, header);
  return header;
}

}  // namespace h3s::io
