// A self-signed certificate and its key in PEM files, made anew for each test that needs one.
#pragma once
#include <string>

namespace quire::http {

struct CertificateFiles {
  std::string certificate, key;  // paths
};
// The key is encrypted when there is a password.
CertificateFiles make_certificate(const std::string& folder, const std::string& name, const std::string& password = "");

}  // namespace quire::http
