#include "base/torch_file.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/byte_reader.h"
#include "base/check.h"
#include "base/errors_about.h"
#include "base/in_quotes.h"
#include "base/stored_zip.h"

namespace quire {
namespace {

using Bytes = std::span<const std::byte>;

// Some 300 bytes and 20 values name a tensor.
constexpr size_t kMostPickleBytes = 16'000'000;
constexpr size_t kMostValues = 1'000'000;
constexpr size_t kMostMarks = 32;
constexpr size_t kMostTorchDims = 8;

// --- what a state dict may name

enum class Callable : uint8_t { ordered_dict, rebuild_tensor, rebuild_parameter, storage };

struct Global {
  std::string_view module, name;
  Callable callable;
  std::string_view dtype = {};  // of a storage, and the bytes of an element
  int64_t bytes = 0;
};

constexpr Global kGlobals[] = {
    {"collections", "OrderedDict", Callable::ordered_dict},
    {"torch._utils", "_rebuild_tensor_v2", Callable::rebuild_tensor},
    {"torch._utils", "_rebuild_parameter", Callable::rebuild_parameter},
    {"torch", "FloatStorage", Callable::storage, "F32", 4},
    {"torch", "HalfStorage", Callable::storage, "F16", 2},
    {"torch", "BFloat16Storage", Callable::storage, "BF16", 2},
    {"torch", "LongStorage", Callable::storage, "I64", 8},
    {"torch", "IntStorage", Callable::storage, "I32", 4},
    {"torch", "ByteStorage", Callable::storage, "U8", 1},
    {"torch", "BoolStorage", Callable::storage, "BOOL", 1},
};

// --- the values that a pickle builds

// A value's place in the arena: nothing has an owner, so nothing that refers to itself needs one.
using ValueId = uint32_t;

enum class Kind : uint8_t { none, boolean, integer, text, tuple, dict, global, storage, tensor };

const char* to_string(Kind kind) {
  constexpr const char* kNames[] = {"None",   "a truth value", "a whole number", "a text",  "a tuple",
                                    "a dict", "a name",        "a storage",      "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

struct Value {
  Kind kind = Kind::none;
  int64_t number = 0;           // an integer; where a global stands in kGlobals; a dict's place among the dicts
  std::string_view text = {};   // in the file
  size_t begin = 0, count = 0;  // a tuple's items; of a storage and of a tensor, what it was made of
};

struct Entry {
  ValueId key, value;
};

class StateDictPickle {
 public:
  explicit StateDictPickle(Bytes bytes) : reader_(bytes) {
    check(bytes.size() <= kMostPickleBytes, "has ", bytes.size(), " bytes, more than ", kMostPickleBytes);
    try {
      while (!stopped_) {
        at_ = reader_.position();
        step();
      }
      check(reader_.left() == 0, "has ", reader_.left(), " bytes behind its end");
    } catch (const CheckError& error) {
      throw CheckError(cat("byte ", at_, ": ", error.what()));
    }
  }

  const Value& operator[](ValueId id) const { return values_[id]; }
  const Value& item(const Value& of, size_t i) const { return values_[items_[of.begin + i]]; }
  const std::vector<Entry>& entries() const { return dicts_[static_cast<size_t>(values_[stack_[0]].number)]; }

 private:
  void step();
  void step_memo(uint8_t opcode);
  bool step_constant(uint8_t opcode);

  ValueId add(const Value& value) {
    check(values_.size() < kMostValues, "builds more than ", kMostValues, " values");
    values_.push_back(value);
    return static_cast<ValueId>(values_.size() - 1);
  }
  void push(ValueId id) {
    check(stack_.size() < kMostValues, "has more than ", kMostValues, " values on its stack");
    stack_.push_back(id);
  }
  void push(const Value& value) { push(add(value)); }
  // How far down the stack may be taken: to the newest mark.
  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  ValueId pop() {
    check(stack_.size() > floor(), "takes a value where there is none");
    const ValueId id = stack_.back();
    stack_.pop_back();
    return id;
  }
  Value pop(Kind kind, std::string_view what) {
    const Value value = values_[pop()];
    check(value.kind == kind, what, " is ", value.kind, ", not ", kind);
    return value;
  }
  size_t pop_mark() {
    check(!marks_.empty(), "goes back to a mark where there is none");
    const size_t mark = marks_.back();
    marks_.pop_back();
    return mark;
  }
  const Value& top(Kind kind, std::string_view what) const {
    check(stack_.size() > floor(), "takes a value where there is none");
    const Value& value = values_[stack_.back()];
    check(value.kind == kind, what, " is ", value.kind, ", not ", kind);
    return value;
  }

  void push_integer(int64_t number) { push({.kind = Kind::integer, .number = number}); }
  void push_long();
  void push_global();
  void push_dict() {
    push({.kind = Kind::dict, .number = static_cast<int64_t>(dicts_.size())});
    dicts_.emplace_back();
  }
  void push_tuple(size_t first);
  void put(size_t place);
  void get(size_t place);
  void set_items(size_t first);
  void call();
  void call_tensor(const Value& args);
  void load_storage();
  std::string_view line();

  ByteReader reader_;
  size_t at_ = 0;
  bool stopped_ = false;
  std::vector<Value> values_;
  std::vector<ValueId> items_;  // of all tuples, each in one stretch
  std::vector<std::vector<Entry>> dicts_;
  std::vector<ValueId> stack_;
  std::vector<size_t> marks_;  // heights of the stack
  std::vector<std::optional<ValueId>> memo_;
};

// --- the instructions, by the names and numbers that Python's pickletools has for them

namespace opcode {
enum : uint8_t {
  proto = 0x80,
  stop = '.',
  mark = '(',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  binint = 'J',
  binint1 = 'K',
  binint2 = 'M',
  long1 = 0x8a,
  binunicode = 'X',
  empty_tuple = ')',
  tuple = 't',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  setitem = 's',
  setitems = 'u',
  binput = 'q',
  long_binput = 'r',
  binget = 'h',
  long_binget = 'j',
  global = 'c',
  reduce = 'R',
  build = 'b',
  binpersid = 'Q',
};
}  // namespace opcode

void StateDictPickle::step() {
  const auto code = reader_.number<uint8_t>("an instruction");
  if (at_ == 0) {
    check(code == opcode::proto, "does not begin as a pickle does");
    const auto protocol = reader_.number<uint8_t>("the protocol");
    check(protocol == 2, "is of protocol ", int{protocol}, "; torch.save writes protocol 2");
    return;
  }
  if (step_constant(code)) return;
  switch (code) {
    case opcode::mark:
      check(marks_.size() < kMostMarks, "nests deeper than ", kMostMarks);
      return marks_.push_back(stack_.size());
    case opcode::tuple:
      return push_tuple(pop_mark());
    case opcode::tuple1:
    case opcode::tuple2:
    case opcode::tuple3: {
      const size_t count = code - opcode::tuple1 + size_t{1};
      check(stack_.size() >= floor() + count, "makes a tuple of ", count, " of fewer values");
      return push_tuple(stack_.size() - count);
    }
    case opcode::setitem:
      check(stack_.size() >= floor() + 2, "sets an item where there is none");
      return set_items(stack_.size() - 2);
    case opcode::setitems:
      return set_items(pop_mark());
    case opcode::binput:
      return put(reader_.number<uint8_t>("a place in the memo"));
    case opcode::long_binput:
      return put(reader_.number<uint32_t>("a place in the memo"));
    case opcode::binget:
      return get(reader_.number<uint8_t>("a place in the memo"));
    case opcode::long_binget:
      return get(reader_.number<uint32_t>("a place in the memo"));
    case opcode::global:
      return push_global();
    case opcode::reduce:
      return call();
    case opcode::build:  // what an ordered dict of a module has beside its items: versions of its parts
      pop(Kind::dict, "what a dict has beside its items");
      top(Kind::dict, "what is told more of");
      return;
    case opcode::binpersid:
      return load_storage();
    case opcode::stop:
      check(marks_.empty() && stack_.size() == 1, "ends with ", stack_.size(), " values on its stack");
      top(Kind::dict, "what it has");
      stopped_ = true;
      return;
    default:
      throw CheckError(cat("has the instruction ", int{code}, ", which no state dict needs"));
  }
}

bool StateDictPickle::step_constant(uint8_t code) {
  switch (code) {
    case opcode::none:
      push(Value{});
      return true;
    case opcode::new_true:
      push({.kind = Kind::boolean, .number = 1});
      return true;
    case opcode::new_false:
      push({.kind = Kind::boolean});
      return true;
    case opcode::binint:
      push_integer(reader_.number<int32_t>("a number"));
      return true;
    case opcode::binint1:
      push_integer(reader_.number<uint8_t>("a number"));
      return true;
    case opcode::binint2:
      push_integer(reader_.number<uint16_t>("a number"));
      return true;
    case opcode::long1:
      push_long();
      return true;
    case opcode::empty_tuple:
      push_tuple(stack_.size());
      return true;
    case opcode::empty_dict:
      push_dict();
      return true;
    case opcode::binunicode: {
      const Bytes text = reader_.take(reader_.number<uint32_t>("the length of a text"), "a text");
      push({.kind = Kind::text, .text = {reinterpret_cast<const char*>(text.data()), text.size()}});
      return true;
    }
    default:
      return false;
  }
}

void StateDictPickle::push_long() {
  const auto bytes = reader_.number<uint8_t>("the length of a number");
  check(bytes <= sizeof(int64_t), "has a number of ", int{bytes}, " bytes, more than ", sizeof(int64_t));
  uint64_t number = 0;
  for (unsigned i = 0; i < bytes; ++i) number |= uint64_t{reader_.number<uint8_t>("a number")} << (8 * i);
  const bool is_negative = bytes > 0 && (number >> (8 * bytes - 1) & 1) != 0;
  if (is_negative && bytes < sizeof(int64_t)) number |= ~uint64_t{0} << (8 * bytes);
  push_integer(static_cast<int64_t>(number));
}

std::string_view StateDictPickle::line() {
  const Bytes rest = ByteReader(reader_).take(std::min(reader_.left(), size_t{100}), "a name");
  const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
  check(end != rest.end(), "has a name that does not end");
  const Bytes name = reader_.take(static_cast<uint64_t>(end - rest.begin()), "a name");
  reader_.take(1, "a name");
  return {reinterpret_cast<const char*>(name.data()), name.size()};
}

void StateDictPickle::push_global() {
  const std::string_view module = line(), name = line();
  const auto* found = std::find_if(std::begin(kGlobals), std::end(kGlobals), [&](const Global& global) {
    return global.module == module && global.name == name;
  });
  check(found != std::end(kGlobals), "names ", in_quotes(cat(module, ".", name)),
        ", which is not read: a state dict of dense tensors needs no such name");
  push({.kind = Kind::global, .number = found - std::begin(kGlobals)});
}

void StateDictPickle::push_tuple(size_t first) {
  const Value tuple{.kind = Kind::tuple, .begin = items_.size(), .count = stack_.size() - first};
  items_.insert(items_.end(), stack_.begin() + static_cast<ptrdiff_t>(first), stack_.end());
  stack_.resize(first);
  push(tuple);
}

void StateDictPickle::put(size_t place) {
  check(stack_.size() > floor(), "takes a value where there is none");
  check(place < kMostValues, "remembers a value at place ", place, ", and there are ", kMostValues);
  if (place >= memo_.size()) memo_.resize(place + 1);
  memo_[place] = stack_.back();
}

void StateDictPickle::get(size_t place) {
  check(place < memo_.size() && memo_[place].has_value(), "asks for place ", place,
        " of its memo, where nothing was put");
  push(*memo_[place]);
}

// Of the dict that lies before them.
void StateDictPickle::set_items(size_t first) {
  check((stack_.size() - first) % 2 == 0, "sets an item that has a key and no value");
  check(first > floor(), "sets items of no dict");
  const Value& dict = values_[stack_[first - 1]];
  check(dict.kind == Kind::dict, "sets items of ", dict.kind, ", not of a dict");
  for (size_t i = first; i < stack_.size(); i += 2) {
    const Value& key = values_[stack_[i]];
    check(key.kind == Kind::text, "has a key that is ", key.kind, ", not a text");
    dicts_[static_cast<size_t>(dict.number)].push_back({.key = stack_[i], .value = stack_[i + 1]});
  }
  stack_.resize(first);
}

void StateDictPickle::call() {
  const Value args = pop(Kind::tuple, "what a call is given");
  const Global& global = kGlobals[pop(Kind::global, "what is called").number];
  switch (global.callable) {
    case Callable::ordered_dict:
      check(args.count == 0, "makes an OrderedDict of ", args.count, " values, not of none");
      return push_dict();
    case Callable::rebuild_tensor:
      return call_tensor(args);
    case Callable::rebuild_parameter:
      check(args.count == 3 && item(args, 0).kind == Kind::tensor, "makes a parameter of something else than a tensor");
      return push(items_[args.begin]);
    case Callable::storage:
      throw CheckError(cat("calls ", global.name));
  }
}

// (storage, offset, dims, strides, needs gradient, hooks), which is all that counts of it; it is looked at when the
// tensor has a name.
void StateDictPickle::call_tensor(const Value& args) {
  constexpr Kind kArgs[] = {Kind::storage, Kind::integer, Kind::tuple, Kind::tuple, Kind::boolean, Kind::dict};
  check(args.count == std::size(kArgs), "makes a tensor of ", args.count, " values, not of ", std::size(kArgs));
  for (size_t i = 0; i < args.count; ++i)
    check(item(args, i).kind == kArgs[i], "makes a tensor of ", item(args, i).kind, " where ", kArgs[i], " must be");
  for (const Value& numbers : {item(args, 2), item(args, 3)}) {
    check(numbers.count <= kMostTorchDims, "makes a tensor of ", numbers.count, " dimensions, more than ",
          kMostTorchDims);
    for (size_t i = 0; i < numbers.count; ++i)
      check(item(numbers, i).kind == Kind::integer, "makes a tensor whose shape or stride has ", item(numbers, i).kind,
            " where ", Kind::integer, " must be");
  }
  Value tensor = args;
  tensor.kind = Kind::tensor;
  push(tensor);
}

// ("storage", type, key, device, elements)
void StateDictPickle::load_storage() {
  Value storage = pop(Kind::tuple, "what names a storage");
  constexpr Kind kParts[] = {Kind::text, Kind::global, Kind::text, Kind::text, Kind::integer};
  check(storage.count == std::size(kParts), "names a storage by ", storage.count, " values, not by ",
        std::size(kParts));
  for (size_t i = 0; i < storage.count; ++i)
    check(item(storage, i).kind == kParts[i], "names a storage by ", item(storage, i).kind, " where ", kParts[i],
          " must be");
  check(item(storage, 0).text == "storage", "asks for ", in_quotes(item(storage, 0).text), ", which is no storage");
  const Global& type = kGlobals[item(storage, 1).number];
  check(type.callable == Callable::storage, "has storage of the type ", type.name);
  storage.kind = Kind::storage;
  push(storage);
}

// --- tensors

const ZipEntry* find(const std::vector<ZipEntry>& entries, std::string_view name) {
  const auto found =
      std::lower_bound(entries.begin(), entries.end(), name,
                       [](const ZipEntry& entry, std::string_view wanted) { return entry.name < wanted; });
  return found != entries.end() && found->name == name ? &*found : nullptr;
}

std::vector<int64_t> numbers_of(const StateDictPickle& pickle, const Value& tuple) {
  std::vector<int64_t> numbers;
  for (size_t i = 0; i < tuple.count; ++i) numbers.push_back(pickle.item(tuple, i).number);
  return numbers;
}

int64_t elements_of(const std::vector<int64_t>& dims) {
  int64_t elements = 1;
  for (const int64_t dim : dims) {
    check(dim >= 1, "has a dimension of ", dim);
    check(dim <= std::numeric_limits<int64_t>::max() / elements, "has more elements than 64 bits count");
    elements *= dim;
  }
  return elements;
}

// Its rows lie one after the other: the stride of a dimension of 1 means nothing.
void check_contiguous(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
  check(strides.size() == dims.size(), "has ", dims.size(), " dimensions and ", strides.size(), " strides");
  int64_t dense = 1;
  for (size_t i = dims.size(); i-- > 0; dense *= dims[i])
    check(dims[i] == 1 || strides[i] == dense, "is not contiguous: dimension ", i, " has the stride ", strides[i],
          ", not ", dense);
}

struct Storage {
  const Global& type;
  int64_t elements;
  Bytes data;
};

Storage storage_of(const StateDictPickle& pickle, const Value& claim, const std::vector<ZipEntry>& entries,
                   const std::string& root) {
  const Global& type = kGlobals[pickle.item(claim, 1).number];
  const std::string name = cat(root, "/data/", pickle.item(claim, 2).text);
  const int64_t elements = pickle.item(claim, 4).number;
  const ZipEntry* entry = find(entries, name);
  check(entry != nullptr, "is in the storage ", in_quotes(name), ", which the file does not have");
  const auto bytes = static_cast<int64_t>(entry->data.size());
  check(elements >= 0 && bytes % type.bytes == 0 && bytes / type.bytes == elements, "is in the storage ",
        in_quotes(name), " of ", elements, " elements of ", type.dtype, ", which has ", bytes, " bytes");
  return {type, elements, entry->data};
}

NamedTensor tensor_of(const StateDictPickle& pickle, const Entry& named, const std::vector<ZipEntry>& entries,
                      const std::string& root) {
  const Value& claim = pickle[named.value];
  check(claim.kind == Kind::tensor, "is ", claim.kind, ", not a tensor");
  const Storage storage = storage_of(pickle, pickle.item(claim, 0), entries, root);
  std::vector<int64_t> dims = numbers_of(pickle, pickle.item(claim, 2));
  const int64_t elements = elements_of(dims), offset = pickle.item(claim, 1).number;
  check_contiguous(dims, numbers_of(pickle, pickle.item(claim, 3)));
  check(offset >= 0 && offset <= storage.elements && elements <= storage.elements - offset, "has ", elements,
        " elements from element ", offset, " of its storage on, which has ", storage.elements);
  const auto size = static_cast<size_t>(storage.type.bytes);
  return {.name = std::string(pickle[named.key].text),
          .dtype = std::string(storage.type.dtype),
          .dims = std::move(dims),
          .data = storage.data.subspan(static_cast<size_t>(offset) * size, static_cast<size_t>(elements) * size)};
}

// --- the file

// What comes before all names.
std::string root_of(const std::vector<ZipEntry>& entries) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string root;
  for (const ZipEntry& entry : entries) {
    if (!entry.name.ends_with(kPickle)) continue;
    check(root.empty(), "has two pickles, ", in_quotes(root + "/data.pkl"), " and ", in_quotes(entry.name));
    root = entry.name.substr(0, entry.name.size() - kPickle.size());
  }
  check(!root.empty(), "has no entry NAME/data.pkl: it is not what torch.save writes");
  return root;
}

void check_byte_order(const std::vector<ZipEntry>& entries, const std::string& root) {
  const ZipEntry* entry = find(entries, root + "/byteorder");  // files of older versions have none
  if (entry == nullptr) return;
  const std::string_view order{reinterpret_cast<const char*>(entry->data.data()), entry->data.size()};
  check(order == "little", "has numbers in the byte order ", in_quotes(order), ", not little");
}

}  // namespace

std::vector<NamedTensor> read_torch_file(Bytes file) {
  check(file.empty() || file[0] != std::byte{opcode::proto},
        "is in the form that torch.save had before version 1.6; saved again, or as safetensors, it can be read");
  const std::vector<ZipEntry> entries = read_stored_zip(file);
  const std::string root = root_of(entries);
  check_byte_order(entries, root);
  const std::string name = root + "/data.pkl";
  const StateDictPickle pickle =
      errors_about(in_quotes_if_odd(name), [&] { return StateDictPickle(find(entries, name)->data); });
  std::vector<NamedTensor> tensors;
  std::set<std::string_view> names;
  for (const Entry& entry : pickle.entries()) {
    const std::string_view key = pickle[entry.key].text;
    errors_about(cat("tensor ", in_quotes(key)), [&] {
      check(names.insert(key).second, "is there twice");
      tensors.push_back(tensor_of(pickle, entry, entries, root));
    });
  }
  return tensors;
}

}  // namespace quire
