// SPDX-License-Identifier: Apache-2.0
// Findings and refusals as JSON, with the same keys in the same order every time.

#include "moxie/report.hpp"

namespace moxie {

namespace {

Json to_json(const Place& where) {
  Json json = Json::object();
  if (!where.file.empty()) json.set("file", where.file);
  if (!where.tensor.empty()) json.set("tensor", where.tensor);
  if (where.layer) json.set("layer", *where.layer);
  if (where.expert) json.set("expert", *where.expert);
  if (where.rank) json.set("rank", *where.rank);
  if (!where.axis.empty()) json.set("axis", where.axis);
  return json;
}

}  // namespace

Json to_json(const Finding& finding) {
  Json json;
  json.set("code", finding.code)
      .set("severity", name_of(finding.severity))
      .set("message", finding.message)
      .set("where", to_json(finding.where))
      .set("expected", finding.expected)
      .set("got", finding.got)
      .set("hint", finding.hint);
  return json;
}

Json to_json(const std::vector<Finding>& findings) {
  Json json = Json::array();
  for (const Finding& finding : findings) json.push_back(to_json(finding));
  return json;
}

Json refusal_json(std::string_view schema, const std::vector<Finding>& findings) {
  return Json::object().set("schema", schema).set("ok", false).set("findings", to_json(findings));
}

}  // namespace moxie
