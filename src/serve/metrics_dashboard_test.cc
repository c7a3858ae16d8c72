// docs/grafana.json: whatever it asks Prometheus for, the server has.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>

#include "serve/metrics.h"
#include "serve/testing_metrics.h"

namespace quire::serve {
namespace {

using nlohmann::json;

json dashboard() {
  std::ifstream file(QUIRE_SOURCE_DIR "/docs/grafana.json");
  return json::parse(file);
}

std::vector<std::string> expressions(const json& board) {
  std::vector<std::string> all;
  for (const json& panel : board.at("panels"))
    for (const json& target : panel.value("targets", json::array())) all.push_back(target.at("expr"));
  for (const json& variable : board.at("templating").at("list"))
    if (variable.at("type") == "query") all.push_back(variable.at("definition"));
  return all;
}

std::set<std::string> exported() {
  Metrics metrics("m");
  metrics.http_answer("/", 200);
  std::set<std::string> names;
  for (const auto& [name, family] : testing::parse_metrics(metrics.exposition({}, cuda::Memory{})))
    for (const auto& [key, value] : family.series) names.insert(key.first);
  return names;
}

TEST(Dashboard, EveryMetricItShowsIsExported) {
  const std::regex metric("(sglang|quire):[a-z0-9_]+|process_[a-z_]+");
  const std::set<std::string> known = exported();
  std::set<std::string> asked;
  for (const std::string& expression : expressions(dashboard())) {
    const std::sregex_iterator first(expression.begin(), expression.end(), metric), none;
    ASSERT_NE(first, none) << expression << " asks for no metric";
    for (auto match = first; match != none; ++match) asked.insert(match->str());
  }
  for (const std::string& name : asked) EXPECT_TRUE(known.contains(name)) << name;
  EXPECT_GT(asked.size(), 15u);
}

TEST(Dashboard, ItsPanelsAskTheChosenDataSourceForTheChosenServers) {
  const json board = dashboard();
  std::set<std::string> variables;
  for (const json& variable : board.at("templating").at("list")) variables.insert(variable.at("name"));
  EXPECT_EQ(variables, (std::set<std::string>{"datasource", "model", "instance"}));
  std::set<int> ids;
  for (const json& panel : board.at("panels")) {
    EXPECT_TRUE(ids.insert(panel.at("id").get<int>()).second) << "two panels have one id";
    for (const json& target : panel.value("targets", json::array())) {
      EXPECT_EQ(target.at("datasource").at("uid"), "${datasource}");
      const std::string expression = target.at("expr");
      EXPECT_NE(expression.find("$model"), std::string::npos) << expression;
      EXPECT_NE(expression.find("$instance"), std::string::npos) << expression;
    }
  }
}

}  // namespace
}  // namespace quire::serve
