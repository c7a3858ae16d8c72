// Includes go downwards only. This reads every #include of the rooms and of the programs on top of them, and fails
// on an edge that the table below does not have.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <istream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Beside itself and base, which everyone may use. The programs put the house together, so they may use all of it.
const std::map<std::string, std::set<std::string>> kMayUse = {
    {"app", {"serve", "http", "hub", "grammar", "text", "jinja", "engine", "model", "ops", "attn", "kv"}},
    {"serve", {"http", "grammar", "text", "engine", "model"}},
    {"grammar", {"engine"}},
    {"http", {}},
    {"hub", {}},
    {"engine", {"model", "ops", "attn", "kv"}},
    {"model", {"ops", "attn", "kv"}},
    {"attn", {"kv"}},
    {"text", {"jinja"}},
    {"jinja", {}},
    {"ops", {}},
    {"kv", {}},
    {"base", {}},
};

// The room of a file, by its place below the source folder; empty when it is in none.
std::string room_of(const fs::path& file, const fs::path& source) {
  const fs::path relative = file.lexically_normal().lexically_relative(source.lexically_normal());
  auto part = relative.begin();
  if (part != relative.end() && *part == "src") ++part;
  return part != relative.end() && kMayUse.contains(part->string()) ? part->string() : "";
}

// The room that an #include reaches. A path relative to the file counts as the file that it names, so that "../" is
// no way around; other paths are relative to src/.
std::string included_room(const fs::path& file, const std::string& included, const fs::path& source) {
  const fs::path beside = file.parent_path() / included;
  const bool relative = fs::exists(beside) || included.starts_with(".") || included.find('/') == std::string::npos;
  return room_of(relative ? beside : source / "src" / included, source);
}

bool allowed(const std::string& from, const std::string& to) {
  return to == from || to == "base" || kMayUse.at(from).contains(to);
}

struct Include {
  bool quoted;
  std::string path;
};

// The path of a line like `#include "kv/store.h"`; none for any other line.
std::optional<Include> parse_include(const std::string& line) {
  std::istringstream words(line);
  char hash = 0, open = 0;
  std::string path;
  if (!(words >> hash) || hash != '#') return std::nullopt;
  words >> std::ws;
  for (const char expected : std::string("include"))
    if (words.get() != expected) return std::nullopt;
  if (!(words >> open) || (open != '"' && open != '<')) return std::nullopt;
  std::getline(words, path, open == '"' ? '"' : '>');
  return Include{open == '"', path};
}

// What is wrong with the #includes of one file, a line for each.
std::vector<std::string> bad_includes(const fs::path& file, std::istream& text, const fs::path& source) {
  std::vector<std::string> bad;
  const std::string from = room_of(file, source);
  if (from.empty()) return {file.string() + ": lies in no room"};
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    const auto include = parse_include(line);
    if (!include) continue;
    const std::string to = included_room(file, include->path, source);
    const std::string place = file.string() + ":" + std::to_string(number) + ": ";
    if (to.empty()) {
      if (include->quoted) bad.push_back(place + "\"" + include->path + "\" is in no room");
    } else if (!allowed(from, to)) {
      bad.push_back(place + from + " may not include " + to + " (" + include->path + ")");
    }
  }
  return bad;
}

bool is_source(const fs::path& file) {
  static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh"};
  return kEndings.contains(file.extension().string());
}

TEST(IncludeDirection, EveryIncludeGoesDownwards) {
  const fs::path source = QUIRE_SOURCE_DIR;
  int files = 0;
  for (const char* folder : {"src", "app"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source / folder)) {
      if (!entry.is_regular_file() || !is_source(entry.path())) continue;
      ++files;
      std::ifstream text(entry.path());
      for (const std::string& bad : bad_includes(entry.path(), text, source)) ADD_FAILURE() << bad;
    }
  }
  EXPECT_GT(files, 10) << "the walk over " << source << " found next to nothing";
}

TEST(IncludeDirection, TheTableHasNoCycle) {
  // A room may be removed when everything that it uses has been; a cycle would never empty.
  auto left = kMayUse;
  for (size_t round = 0; round < kMayUse.size(); ++round)
    std::erase_if(left, [&](const auto& room) {
      return std::none_of(room.second.begin(), room.second.end(),
                          [&](const auto& used) { return left.contains(used); });
    });
  EXPECT_TRUE(left.empty());
}

// The checker on made-up files.
std::vector<std::string> check_line(const std::string& file, const std::string& line) {
  std::istringstream text("#include <vector>\n" + line + "\nint x;\n");
  return bad_includes(fs::path("/house") / file, text, "/house");
}

TEST(IncludeDirection, BadEdgesAreFound) {
  const std::pair<const char*, const char*> bad[] = {
      {"src/base/a.h", "#include \"kv/page_pool.h\""},
      {"src/kv/a.cc", "#include \"attn/attention.h\""},
      {"src/kv/a.cc", "  #  include \"attn/attention.h\"  // why"},
      {"src/kv/a.cc", "#include <attn/attention.h>"},
      {"src/kv/a.cc", "#include \"../attn/attention.h\""},
      {"src/attn/a.cu", "#include \"engine/batch.h\""},
      {"src/attn/a.h", "#include \"ops/matmul.h\""},
      {"src/ops/a.cc", "#include \"kv/store.h\""},
      {"src/model/a.cc", "#include \"engine/engine.h\""},
      {"src/engine/a.cc", "#include \"text/tokenizer.h\""},
      {"src/text/a.cc", "#include \"engine/engine.h\""},
      {"src/jinja/a.cc", "#include \"text/regex.h\""},
      {"src/serve/a.cc", "#include \"attn/attention.h\""},
      {"src/serve/a.cc", "#include \"app/main.h\""},
      {"src/attn/a.cc", "#include \"drawer/things.h\""},
      {"src/hub/a.cc", "#include \"http/server.h\""},
      {"src/serve/a.cc", "#include \"hub/hub.h\""},
      {"src/drawer/a.cc", "int y;"},
  };
  for (const auto& [file, line] : bad) EXPECT_EQ(check_line(file, line).size(), 1u) << file << ": " << line;
  EXPECT_EQ(check_line("src/kv/a.cc", "#include \"attn/attention.h\"").at(0),
            "/house/src/kv/a.cc:2: kv may not include attn (attn/attention.h)");
}

TEST(IncludeDirection, GoodEdgesPass) {
  const std::pair<const char*, const char*> good[] = {
      {"src/base/a.cc", "#include \"base/check.h\""},       {"src/base/a.cc", "#include <sys/mman.h>"},
      {"src/attn/a.cc", "#include \"attn/attention.h\""},   {"src/attn/a.cc", "#include \"beside.h\""},
      {"src/attn/a.cc", "#include \"kv/page_pool.h\""},     {"src/text/a.cc", "#include \"base/check.h\""},
      {"src/engine/a.cc", "#include \"attn/attention.h\""}, {"src/serve/a.cc", "#include \"engine/engine.h\""},
      {"app/bench.cc", "#include \"attn/attention.h\""},    {"app/bench.cc", "#include \"app/table.h\""},
      {"src/kv/a.cc", "// see \"attn/attention.h\""},
  };
  for (const auto& [file, line] : good) EXPECT_TRUE(check_line(file, line).empty()) << file << ": " << line;
}

}  // namespace
