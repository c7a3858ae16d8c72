#include "grammar/rules_shape.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace quire::grammar {
namespace {

constexpr int64_t kMostPlacesInSequence = 256, kMostTextInRule = 128;

constexpr int32_t kMostUnrolledCount = 64;

class Shaper {
 public:
  explicit Shaper(Rules& rules) : rules_(rules) {}

  void shape_all() {
    const auto count = static_cast<RuleId>(rules_.rules.size());  // those made here have their shape
    for (RuleId id = 0; id < count; ++id) {
      Expression body = shape(std::move(rules_[id].body));
      rules_[id].body = std::move(body);
    }
  }

 private:
  Expression shape(Expression expression) {
    if (expression.kind == Expression::Kind::text) return split_text(std::move(expression));
    for (Expression& part : expression.parts) part = shape(std::move(part));
    if (expression.kind == Expression::Kind::sequence) return split_sequence(std::move(expression));
    if (expression.kind == Expression::Kind::repeat) return count_characters(std::move(expression));
    return expression;
  }

  Expression count_characters(Expression expression) {
    const bool of_characters = expression.parts.front().kind == Expression::Kind::set;
    if (!of_characters || expression.most <= kMostUnrolledCount || expression.least == expression.most)
      return expression;
    const int32_t most = std::exchange(expression.most, kUnlimited);
    const RuleId id = rules_.add(std::move(expression));
    rules_[id].most_characters = most;
    return refer(id);
  }

  Expression split_text(Expression expression) {
    const std::string& bytes = expression.text;
    if (std::ssize(bytes) <= kMostTextInRule) return expression;
    std::vector<Expression> pieces;
    for (size_t begin = 0; begin < bytes.size();) {
      size_t end = std::min<size_t>(begin + kMostTextInRule, bytes.size());
      while (end < bytes.size() && (static_cast<unsigned char>(bytes[end]) & 0xC0) == 0x80) --end;
      pieces.push_back(shared_text(bytes.substr(begin, end - begin)));
      begin = end;
    }
    return split_sequence(sequence(std::move(pieces)));
  }

  Expression shared_text(const std::string& bytes) {
    const auto [known, is_new] = texts_.try_emplace(bytes, 0);
    if (is_new) known->second = rules_.add(text(bytes));
    return refer(known->second);
  }

  Expression split_sequence(Expression expression) {
    if (expression.kind != Expression::Kind::sequence || places(expression) <= kMostPlacesInSequence) return expression;
    std::vector<Expression> chunks, chunk;
    int64_t so_far = 0;
    const auto close = [&] {
      if (!chunk.empty()) chunks.push_back(refer(rules_.add(sequence(std::exchange(chunk, {})))));
      so_far = 0;
    };
    for (Expression& part : expression.parts) {
      const int64_t more = places(part);
      if (so_far + more > kMostPlacesInSequence) close();
      so_far += more;
      chunk.push_back(std::move(part));
    }
    close();
    return sequence(std::move(chunks));
  }

  Rules& rules_;
  std::map<std::string, RuleId> texts_;
};

}  // namespace

void shape_rules(Rules& rules) { Shaper(rules).shape_all(); }

}  // namespace quire::grammar
