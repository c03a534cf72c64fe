// Pre-tokenizers by a regular expression of the host's, for files whose own is not known: the text
// is cut at the beginning and the end of each match. PCRE2 without its JIT; builds without it
// (DECANT_PCRE2=OFF) answer `unsupported`.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "text/pre_tokenizer.hpp"

namespace decant::detail {

class Pattern {
 public:
  /// Perl syntax, Unicode classes. Errors: invalid_argument with the place, unsupported.
  static Result<std::shared_ptr<const Pattern>> create(std::string_view expression);
  virtual ~Pattern() = default;
  /// Appends the pieces of a text of any bytes, in order; what is no UTF-8 is a piece byte by byte.
  /// Errors: invalid_argument when the expression needs too many steps or too much memory here.
  virtual Status cut(std::string_view text, std::vector<PreTokenMatch>& pieces) const = 0;
};

}  // namespace decant::detail
