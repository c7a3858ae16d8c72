#include "http/testing_certificate.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>
#include <memory>

#include "base/check.h"

namespace quire::http {
namespace {

template <class T>
using Owned = std::unique_ptr<T, void (*)(T*)>;
using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

Owned<X509> self_signed(EVP_PKEY* key) {
  Owned<X509> certificate(X509_new(), X509_free);
  X509_set_version(certificate.get(), 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate.get()), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key);
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const auto* common_name = reinterpret_cast<const unsigned char*>("localhost");
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, common_name, -1, -1, 0);
  X509_set_issuer_name(certificate.get(), name);
  check(X509_sign(certificate.get(), key, EVP_sha256()) > 0, "the certificate cannot be signed");
  return certificate;
}

File open_file(const std::string& path) {
  File file(std::fopen(path.c_str(), "w"), std::fclose);
  check(file != nullptr, "cannot write ", path);
  return file;
}

}  // namespace

CertificateFiles make_certificate(const std::string& folder, const std::string& name, const std::string& password) {
  const CertificateFiles files{folder + "/" + name + ".crt", folder + "/" + name + ".key"};
  const Owned<EVP_PKEY> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
  check(key != nullptr, "no key can be made");
  PEM_write_X509(open_file(files.certificate).get(), self_signed(key.get()).get());
  const EVP_CIPHER* cipher = password.empty() ? nullptr : EVP_aes_256_cbc();
  PEM_write_PKCS8PrivateKey(open_file(files.key).get(), key.get(), cipher, password.data(),
                            static_cast<int>(password.size()), nullptr, nullptr);
  return files;
}

}  // namespace quire::http
