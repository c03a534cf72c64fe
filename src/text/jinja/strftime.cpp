// strftime in the C locale, with glibc's flags (- _ 0 ^ #). The calendar is computed here: nothing
// reads the locale or the environment.
#include <chrono>

#include "text/jinja/value.hpp"

namespace decant::detail::jinja {

static constexpr const char* kJinjaDays[] = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                             "Thursday", "Friday", "Saturday"};
static constexpr const char* kJinjaMonths[] = {"January",   "February", "March",    "April",
                                               "May",       "June",     "July",     "August",
                                               "September", "October",  "November", "December"};

static bool jinja_leap(int year) { return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0); }

// From 0, for 1 January.
static int jinja_day_of_year(const ChatTime& t) {
  static constexpr int kBefore[] = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  return kBefore[t.month - 1] + (t.month > 2 && jinja_leap(t.year) ? 1 : 0) + t.day - 1;
}

// From 0, for Sunday.
static int jinja_weekday(const ChatTime& t) {
  const int years = t.year - 1;
  return (1 + years + years / 4 - years / 100 + years / 400 + jinja_day_of_year(t)) % 7;
}

ChatTime current_time() {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const auto day = std::chrono::floor<std::chrono::days>(now);
  const std::chrono::year_month_day date(day);
  const auto rest = (now - day).count();
  return {static_cast<int>(date.year()),
          static_cast<int>(static_cast<unsigned>(date.month())),
          static_cast<int>(static_cast<unsigned>(date.day())),
          static_cast<int>(rest / 3600),
          static_cast<int>(rest / 60 % 60),
          static_cast<int>(rest % 60)};
}

namespace {

class JinjaTimeWriter {
 public:
  explicit JinjaTimeWriter(const ChatTime& time) : t_(time) {}

  /// False for a directive that does not exist.
  bool write(char directive, char flag) {
    const std::size_t begin = out.size();
    switch (directive) {
      case 'a': out += std::string_view(kJinjaDays[weekday()]).substr(0, 3); break;
      case 'A': out += kJinjaDays[weekday()]; break;
      case 'b':
      case 'h': out += std::string_view(kJinjaMonths[t_.month - 1]).substr(0, 3); break;
      case 'B': out += kJinjaMonths[t_.month - 1]; break;
      case 'c': all("a b e H:M:S Y"); break;
      case 'C': number(t_.year / 100, 2, '0', flag); break;
      case 'd': number(t_.day, 2, '0', flag); break;
      case 'D':
      case 'x': all("m/d/y"); break;
      case 'e': number(t_.day, 2, ' ', flag); break;
      case 'f': out += "000000"; break;
      case 'F': all("Y-m-d"); break;
      case 'g': number(iso().year % 100, 2, '0', flag); break;
      case 'G': number(iso().year, 4, '0', flag); break;
      case 'H': number(t_.hour, 2, '0', flag); break;
      case 'I': number((t_.hour + 11) % 12 + 1, 2, '0', flag); break;
      case 'j': number(jinja_day_of_year(t_) + 1, 3, '0', flag); break;
      case 'k': number(t_.hour, 2, ' ', flag); break;
      case 'l': number((t_.hour + 11) % 12 + 1, 2, ' ', flag); break;
      case 'm': number(t_.month, 2, '0', flag); break;
      case 'M': number(t_.minute, 2, '0', flag); break;
      case 'n': out += '\n'; break;
      case 'p': out += t_.hour < 12 ? "AM" : "PM"; break;
      case 'P': out += t_.hour < 12 ? "am" : "pm"; break;
      case 'r': all("I:M:S p"); break;
      case 'R': all("H:M"); break;
      case 'S': number(t_.second, 2, '0', flag); break;
      case 't': out += '\t'; break;
      case 'T':
      case 'X': all("H:M:S"); break;
      case 'u': number((weekday() + 6) % 7 + 1, 1, '0', flag); break;
      case 'U': number((jinja_day_of_year(t_) + 7 - weekday()) / 7, 2, '0', flag); break;
      case 'V': number(iso().week, 2, '0', flag); break;
      case 'w': number(weekday(), 1, '0', flag); break;
      case 'W': number((jinja_day_of_year(t_) + 7 - (weekday() + 6) % 7) / 7, 2, '0', flag); break;
      case 'y': number(t_.year % 100, 2, '0', flag); break;
      case 'Y': number(t_.year, 1, '0', flag); break;
      case 'z':
      case 'Z': break;  // a time without zone
      case '%': out += '%'; break;
      default: return false;
    }
    if (flag == '^' || (flag == '#' && directive != 'p')) {
      for (std::size_t i = begin; i < out.size(); ++i) {
        if (out[i] >= 'a' && out[i] <= 'z') out[i] = static_cast<char>(out[i] - 32);
      }
    }
    if (flag == '#' && directive == 'p') {
      for (std::size_t i = begin; i < out.size(); ++i) out[i] = static_cast<char>(out[i] + 32);
    }
    return true;
  }

  std::string out;

 private:
  struct IsoWeek {
    int year, week;
  };
  int weekday() const { return jinja_weekday(t_); }

  // Weeks begin on Monday; the first one holds the year's first Thursday.
  IsoWeek iso() const {
    const int day = jinja_day_of_year(t_), monday = (weekday() + 6) % 7;
    const int week = (day - monday + 10) / 7;
    const auto weeks = [](int year) {
      const int last = jinja_weekday({year, 12, 31});
      return last == 4 || (last == 5 && jinja_leap(year)) ? 53 : 52;
    };
    if (week < 1) return {t_.year - 1, weeks(t_.year - 1)};
    if (week > weeks(t_.year)) return {t_.year + 1, 1};
    return {t_.year, week};
  }

  void number(int x, std::size_t width, char pad, char flag) {
    if (flag == '_') pad = ' ';
    if (flag == '0') pad = '0';
    std::string digits;
    append_integer(digits, x);
    if (flag != '-' && digits.size() < width) out.append(width - digits.size(), pad);
    out += digits;
  }

  // Letters are directives, everything else is itself.
  void all(std::string_view pattern) {
    for (const char c : pattern) {
      const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
      if (!letter) {
        out += c;
      } else {
        write(c, 0);
      }
    }
  }

  const ChatTime& t_;
};

}  // namespace

Value format_time(Heap& heap, std::string_view format, const ChatTime& time, Origin origin) {
  if (time.month < 1 || time.month > 12 || time.day < 1 || time.day > 31 || time.year < 1 ||
      time.year > 9999) {
    return heap.fail("strftime_now: the host's clock gives no date");
  }
  JinjaTimeWriter writer(time);
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      writer.out += format[i];
      continue;
    }
    const std::size_t begin = i++;
    char flag = 0;
    constexpr std::string_view kFlags = "-_0^#";
    while (i < format.size() && kFlags.find(format[i]) != kFlags.npos) {
      flag = format[i++];
    }
    // What is no directive stays as it is.
    if (i == format.size() || !writer.write(format[i], flag)) {
      writer.out += format.substr(begin, i - begin + 1);
    }
  }
  return heap.copy(writer.out, origin);
}

}  // namespace decant::detail::jinja
