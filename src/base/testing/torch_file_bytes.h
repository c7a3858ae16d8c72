// For tests: the bytes of files as torch.save lays them out, put down piece by piece, true or not.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace quire {

template <class T>
std::string bytes_of_number(T number) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &number, sizeof(T));
  return {bytes, sizeof(T)};
}

// Puts a number in the place of what is there.
template <class T>
void put(std::string& bytes, size_t at, std::type_identity_t<T> number) {
  bytes.replace(at, sizeof(T), bytes_of_number<T>(number));
}

// A zip of stored entries. Where things begin is known, so that tests can change them: after str().
class ZipBytes {
 public:
  struct Places {
    size_t header, data, listed;
  };
  std::vector<Places> places;
  size_t directory = 0, end64 = 0, end = 0;
  bool sizes_elsewhere = false;  // in zip64 fields, as those of large entries
  bool zip64 = true;             // there is a zip64 end, as torch always writes it

  // Bytes begin at multiples of 64, behind a field that pads; sizes are told behind them.
  ZipBytes& entry(std::string_view name, std::string_view data) {
    Places place{.header = bytes_.size(), .data = (bytes_.size() + 34 + name.size() + 63) / 64 * 64, .listed = 0};
    const auto padding = static_cast<uint16_t>(place.data - place.header - 34 - name.size());
    number<uint32_t>(0x04034b50).number<uint16_t>(0).number<uint16_t>(0x808).number<uint16_t>(0);
    number<uint64_t>(0).number<uint64_t>(0);  // time, checksum, sizes
    number<uint16_t>(static_cast<uint16_t>(name.size())).number<uint16_t>(static_cast<uint16_t>(padding + 4));
    bytes_ += name;
    bytes_ += "FB";
    number<uint16_t>(padding);
    bytes_.append(padding, 'Z');
    bytes_ += data;
    number<uint32_t>(0x08074b50).number<uint32_t>(0);
    number<uint32_t>(static_cast<uint32_t>(data.size())).number<uint32_t>(static_cast<uint32_t>(data.size()));
    places.push_back(place);
    names_.emplace_back(name);
    sizes_.push_back(data.size());
    return *this;
  }

  std::string str() {
    directory = bytes_.size();
    for (size_t i = 0; i < places.size(); ++i) list(i);
    const uint64_t size = bytes_.size() - directory, entries = places.size();
    if (zip64) {
      end64 = bytes_.size();
      number<uint32_t>(0x06064b50).number<uint64_t>(44).number<uint32_t>(0).number<uint64_t>(0);
      number<uint64_t>(entries).number<uint64_t>(entries).number<uint64_t>(size).number<uint64_t>(directory);
      number<uint32_t>(0x07064b50).number<uint32_t>(0).number<uint64_t>(end64).number<uint32_t>(1);
    }
    end = bytes_.size();
    number<uint32_t>(0x06054b50).number<uint32_t>(0);
    number<uint16_t>(static_cast<uint16_t>(entries)).number<uint16_t>(static_cast<uint16_t>(entries));
    number<uint32_t>(static_cast<uint32_t>(size)).number<uint32_t>(static_cast<uint32_t>(directory));
    number<uint16_t>(0);
    return bytes_;
  }

 private:
  template <class T>
  ZipBytes& number(std::type_identity_t<T> value) {
    bytes_ += bytes_of_number<T>(value);
    return *this;
  }
  void list(size_t i) {
    places[i].listed = bytes_.size();
    const auto size = static_cast<uint32_t>(sizes_[i]);
    number<uint32_t>(0x02014b50).number<uint32_t>(0).number<uint16_t>(0x808).number<uint16_t>(0).number<uint64_t>(0);
    for (int twice = 0; twice < 2; ++twice) number<uint32_t>(sizes_elsewhere ? 0xffffffff : size);
    number<uint16_t>(static_cast<uint16_t>(names_[i].size())).number<uint16_t>(sizes_elsewhere ? 28 : 0);
    number<uint64_t>(0).number<uint16_t>(0);  // comment, disk, attributes
    number<uint32_t>(sizes_elsewhere ? 0xffffffff : static_cast<uint32_t>(places[i].header));
    bytes_ += names_[i];
    if (!sizes_elsewhere) return;
    number<uint16_t>(1).number<uint16_t>(24).number<uint64_t>(size).number<uint64_t>(size);
    number<uint64_t>(places[i].header);
  }

  std::string bytes_;
  std::vector<std::string> names_;
  std::vector<size_t> sizes_;
};

// A pickle of protocol 2, with everything put into the memo that Python puts there.
class PickleBytes {
 public:
  PickleBytes() { raw("\x80\x02"); }

  const std::string& str() const { return bytes_; }
  PickleBytes& raw(std::string_view bytes) {
    bytes_ += bytes;
    return *this;
  }
  PickleBytes& remember() {
    if (next_ < 256) return raw("q").raw(bytes_of_number<uint8_t>(static_cast<uint8_t>(next_++)));
    return raw("r").raw(bytes_of_number<uint32_t>(next_++));
  }
  PickleBytes& remembered(uint32_t place) {
    if (place < 256) return raw("h").raw(bytes_of_number<uint8_t>(static_cast<uint8_t>(place)));
    return raw("j").raw(bytes_of_number<uint32_t>(place));
  }
  PickleBytes& text(std::string_view text) {
    return raw("X").raw(bytes_of_number<uint32_t>(static_cast<uint32_t>(text.size()))).raw(text).remember();
  }
  PickleBytes& integer(int64_t value) {
    if (value >= 0 && value < 256) return raw("K").raw(bytes_of_number<uint8_t>(static_cast<uint8_t>(value)));
    if (value >= 0 && value < 65536) return raw("M").raw(bytes_of_number<uint16_t>(static_cast<uint16_t>(value)));
    if (value == static_cast<int32_t>(value))
      return raw("J").raw(bytes_of_number<int32_t>(static_cast<int32_t>(value)));
    return raw("\x8a\x08").raw(bytes_of_number<int64_t>(value));
  }
  PickleBytes& global(const std::string& module, const std::string& name) {
    const std::string lines = module + "\n" + name + "\n";
    if (const auto known = globals_.find(lines); known != globals_.end()) return remembered(known->second);
    globals_[lines] = next_;
    return raw("c").raw(lines).remember();
  }
  PickleBytes& integers(std::span<const int64_t> values) {
    if (values.empty()) return raw(")");
    if (values.size() > 3) raw("(");
    for (const int64_t value : values) integer(value);
    constexpr std::string_view kTuples = "\x85\x86\x87";
    return raw(values.size() > 3 ? "t" : kTuples.substr(values.size() - 1, 1)).remember();
  }
  PickleBytes& ordered_dict() { return global("collections", "OrderedDict").raw(")R").remember(); }
  PickleBytes& storage(const std::string& type, std::string_view key, int64_t elements) {
    raw("(").text("storage").global("torch", type).text(key).text("cpu").integer(elements);
    return raw("t").remember().raw("Q");
  }
  // A tensor's call, but for its storage, which stands between begin and end.
  PickleBytes& begin_tensor() { return global("torch._utils", "_rebuild_tensor_v2").raw("("); }
  PickleBytes& end_tensor(int64_t offset, std::span<const int64_t> dims, std::span<const int64_t> strides) {
    integer(offset).integers(dims).integers(strides).raw("\x89").ordered_dict();
    return raw("t").remember().raw("R").remember();
  }

 private:
  std::string bytes_;
  uint32_t next_ = 0;
  std::map<std::string, uint32_t> globals_;
};

inline std::vector<int64_t> dense_strides(std::span<const int64_t> dims) {
  std::vector<int64_t> strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// A whole state dict, tensor by tensor, as a module's: ordered, with the versions of its parts beside it.
class TorchFileBytes {
 public:
  TorchFileBytes() { pickle_.ordered_dict().raw("("); }

  TorchFileBytes& tensor(std::string_view name, const std::string& dtype, std::span<const int64_t> dims,
                         std::string_view data) {
    static const std::map<std::string, std::pair<std::string, size_t>> kStorages = {
        {"F32", {"FloatStorage", 4}}, {"F16", {"HalfStorage", 2}}, {"BF16", {"BFloat16Storage", 2}},
        {"I64", {"LongStorage", 8}},  {"I32", {"IntStorage", 4}},  {"U8", {"ByteStorage", 1}},
        {"BOOL", {"BoolStorage", 1}}};
    const auto& [type, bytes] = kStorages.at(dtype);
    const std::string key = std::to_string(storages_.size());
    pickle_.text(name).begin_tensor().storage(type, key, static_cast<int64_t>(data.size() / bytes));
    pickle_.end_tensor(0, dims, dense_strides(dims));
    storages_.emplace_back(data);
    return *this;
  }

  std::string str(const std::string& root = "archive") {
    pickle_.raw("u}").remember().text("_metadata").ordered_dict().raw("(").text("").raw("}").remember();
    pickle_.text("version").integer(1).raw("su").raw("sb.");
    ZipBytes zip;
    zip.entry(root + "/data.pkl", pickle_.str()).entry(root + "/byteorder", "little");
    for (size_t i = 0; i < storages_.size(); ++i) zip.entry(root + "/data/" + std::to_string(i), storages_[i]);
    return zip.entry(root + "/version", "3\n").str();
  }

 private:
  PickleBytes pickle_;
  std::vector<std::string> storages_;
};

}  // namespace quire
