#include "io/json.h"

#include <set>
#include <vector>

#include "base/error.h"

namespace h3s::io {
namespace {

constexpr std::size_t kMaxDepth = 32;     // tags are two deep, metadata four
constexpr std::size_t kMaxPrinted = 200;  // bytes of a name in a message

// Feeds the library's own tree builder, and refuses what that builder would accept silently.
class StrictBuilder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit StrictBuilder(nlohmann::json& root) : tree_(root, false) {}

  const std::string& reason() const { return reason_; }

  bool null() override { return tree_.null(); }
  bool boolean(bool v) override { return tree_.boolean(v); }
  bool number_integer(number_integer_t v) override { return tree_.number_integer(v); }
  bool number_unsigned(number_unsigned_t v) override { return tree_.number_unsigned(v); }
  bool number_float(number_float_t v, const string_t& text) override { return tree_.number_float(v, text); }
  bool string(string_t& v) override { return tree_.string(v); }
  bool binary(binary_t& v) override { return tree_.binary(v); }

  bool start_object(std::size_t elements) override {
    keys_.emplace_back();
    return within_depth() && tree_.start_object(elements);
  }
  bool end_object() override {
    keys_.pop_back();
    return tree_.end_object();
  }
  bool start_array(std::size_t elements) override {
    keys_.emplace_back();
    return within_depth() && tree_.start_array(elements);
  }
  bool end_array() override {
    keys_.pop_back();
    return tree_.end_array();
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second)
      return refuse(fmt::format("key \"{}\" is given twice", printable(name)));
    return tree_.key(name);
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    return refuse(fmt::format("not valid JSON at byte {}", position));
  }

 private:
  bool refuse(std::string reason) {
    reason_ = std::move(reason);
    return false;
  }
  bool within_depth() {
    return keys_.size() <= kMaxDepth || refuse(fmt::format("nested deeper than {}", kMaxDepth));
  }

  nlohmann::detail::json_sax_dom_parser<nlohmann::json> tree_;
  std::vector<std::set<std::string>> keys_;  // one a level; arrays hold an empty one
  std::string reason_;
};

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxPrinted)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '\\')
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  if (text.size() > kMaxPrinted) out += fmt::format("... ({} bytes)", text.size());
  return out;
}

nlohmann::json parse_json_object(std::string_view text, const std::string& where) {
  // The library takes a NUL byte for the end of its input.
  if (text.find('\0') != text.npos) fail(Status::kBadFile, "{}: not valid JSON: it holds a NUL byte", where);
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    fail(Status::kBadFile, "{}: empty, expected a JSON object", where);
  nlohmann::json root;
  StrictBuilder builder(root);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder))
    fail(Status::kBadFile, "{}: {}", where, builder.reason().empty() ? "not valid JSON" : builder.reason());
  if (!root.is_object())
    fail(Status::kBadFile, "{}: expected a JSON object, got {}", where, root.type_name());
  return root;
}

}  // namespace h3s::io
