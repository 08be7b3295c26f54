// Safetensors files are read as they were written; a hostile file gives an error with a sentence.
#include "tensor/safetensors.h"

#include <ATen/ATen.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "tests/support/scratch_folder.h"

using shardproof::Error;
using shardproof::ErrorKind;
using shardproof::NamedTensors;
using shardproof::SafetensorsFile;
using shardproof::write_safetensors;
using shardproof::write_safetensors_fd;

namespace {

namespace fs = std::filesystem;
using Catch::Matchers::Contains;

struct TemporaryFolder : shardproof::sim::ScratchFolder {
  std::string file(const std::string& name) const { return path() + "/" + name; }
  int64_t file_count() const {
    return std::distance(fs::directory_iterator(path()), fs::directory_iterator());
  }
};

std::string length_prefix(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  return bytes;
}

std::string with_header(const std::string& json, const std::string& data = "") {
  return length_prefix(json.size()) + json + data;
}

// The error of opening a file with these bytes; "" without one.
std::string refusal(const std::string& bytes) {
  const TemporaryFolder folder;
  const std::string path = folder.file("hostile.safetensors");
  folder.write("hostile.safetensors", bytes);
  try {
    SafetensorsFile::open(path);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::kBadInput);
    CHECK_FALSE(error.fix().empty());
    CHECK(error.fact().find(path) == 0);
    CHECK(error.fact().size() < path.size() + 400);
    return error.fact();
  }
  return "";
}

// Rows of a header and a part of what is said of it.
using Refused = std::vector<std::pair<std::string, std::string>>;

void check_headers(const Refused& rows, const std::string& data = "") {
  for (const auto& [header, said] : rows) {
    INFO(header);
    CHECK_THAT(refusal(with_header(header, data)), Contains(said));
  }
}

std::string zeros(size_t count) { return std::string(count, '\0'); }

NamedTensors one_of_each_dtype() {
  NamedTensors tensors;
  for (const auto type : {at::kBool, at::kByte, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
                          at::kInt, at::kShort, at::kChar, at::kFloat}) {
    const at::Tensor values = at::arange(0, 15, at::TensorOptions(at::kDouble)).view({3, 5}) - 7;
    const at::Tensor fitting = type == at::kByte ? values + 200 : values;
    tensors.emplace_back(std::string("of ") + c10::toString(type), fitting.to(type));
  }
  tensors.emplace_back("scalar", at::scalar_tensor(-0.1, at::kDouble));
  tensors.emplace_back("empty", at::empty({3, 0, 2}, at::kFloat));
  tensors.emplace_back("strided", at::arange(12, at::TensorOptions(at::kLong)).view({3, 4}).t());
  tensors.emplace_back(
      "not finite",
      at::tensor({std::nan(""), std::numeric_limits<double>::infinity()}, at::kDouble));
  return tensors;
}

void check_same(const NamedTensors& tensors, const SafetensorsFile& file) {
  CHECK(file.names().size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    INFO(name);
    REQUIRE(file.contains(name));
    const at::Tensor read = file.get(name);
    CHECK(read.scalar_type() == tensor.scalar_type());
    CHECK(read.sizes().equals(tensor.sizes()));
    const at::Tensor plain = tensor.contiguous();
    const bool empty = plain.nbytes() == 0;  // has no memory to compare
    CHECK(
        (empty || std::memcmp(read.const_data_ptr(), plain.const_data_ptr(), plain.nbytes()) == 0));
  }
}

}  // namespace

TEST_CASE("every dtype, scalars, empty and strided tensors read back as written", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("all.safetensors");
  const auto tensors = one_of_each_dtype();
  write_safetensors(path, tensors, {{"format", "pt"}, {"note", "quotes \" and \n lines"}});
  const auto file = SafetensorsFile::open(path);
  check_same(tensors, file);
  CHECK(file.metadata().at("note") == "quotes \" and \n lines");
  CHECK(folder.file_count() == 1);  // there is no temporary file
  struct stat status {};
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0600) == 0600);
}

TEST_CASE("a file that is replaced stays whole for those who have it open", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("twice.safetensors");
  const at::Tensor ones = at::ones({5}, at::kDouble);
  write_safetensors(path, {{"x", ones}});
  const auto before = SafetensorsFile::open(path);
  write_safetensors(path, {{"x", at::zeros({2}, at::kDouble)}});
  CHECK(before.get("x").equal(ones));
  CHECK(SafetensorsFile::open(path).get("x").numel() == 2);
}

TEST_CASE("a memfd is written to size and read without a copy of the descriptor", "[safetensors]") {
  const int fd = ::memfd_create("test", 0);
  REQUIRE(fd >= 0);
  write_safetensors_fd(fd, {{"long", at::ones({1000}, at::kDouble)}});
  const auto tensors = one_of_each_dtype();
  write_safetensors_fd(fd, tensors);  // is shorter than the old content
  const auto file = SafetensorsFile::from_fd(fd, "the golden");
  ::close(fd);
  check_same(tensors, file);
}

TEST_CASE("wider dtypes come first, else the order given, so that all data is aligned",
          "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("order.safetensors");
  write_safetensors(path, {{"flag", at::ones({3}, at::kBool)},
                           {"b", at::ones({1}, at::kFloat)},
                           {"z", at::ones({1}, at::kDouble)},
                           {"a", at::ones({1}, at::kLong)}});
  const auto file = SafetensorsFile::open(path);
  CHECK(file.names() == std::vector<std::string>{"z", "a", "b", "flag"});
  std::ifstream stream(path, std::ios::binary);
  unsigned char low = 1;
  stream.read(reinterpret_cast<char*>(&low), 1);
  CHECK(low % 8 == 0);
}

TEST_CASE("a missing tensor is answered with the nearest name", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("near.safetensors");
  write_safetensors(path, {{"model.norm.weight", at::ones({3}, at::kDouble)}});
  CHECK_THROWS_WITH(SafetensorsFile::open(path).get("model.norm.wieght"),
                    Contains("nearest name in it is 'model.norm.weight'"));
}

TEST_CASE("misaligned data of another writer is copied, not refused", "[safetensors]") {
  const double value = 2.5;
  std::string data = "\1";
  data.append(reinterpret_cast<const char*>(&value), sizeof value);
  const std::string json = R"({"flag":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                           R"("x":{"dtype":"F64","shape":[1],"data_offsets":[1,9]}})";
  const TemporaryFolder folder;
  folder.write("misaligned.safetensors", with_header(json, data));
  CHECK(SafetensorsFile::open(folder.file("misaligned.safetensors")).get("x").item<double>() ==
        value);
}

TEST_CASE("valid corner cases are accepted", "[safetensors]") {
  CHECK(refusal(with_header("{}")) == "");
  CHECK(refusal(with_header("{}     ")) == "");
  CHECK(refusal(with_header(R"({"__metadata__":{}})")) == "");
  CHECK(refusal(with_header(R"({"x":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})",
                            zeros(8))) == "");
  CHECK(refusal(with_header(R"({"x":{"data_offsets":[0,0],"shape":[0,7],"dtype":"F16"}})")) == "");
  CHECK(refusal(with_header(R"({"x":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},)"
                            R"("y":{"dtype":"F64","shape":[0],"data_offsets":[0,0]}})")) == "");
}

TEST_CASE("a file that is cut short or no safetensors file is a sentence", "[safetensors]") {
  CHECK_THAT(refusal(""), Contains("0 bytes are too few"));
  CHECK_THAT(refusal("short"), Contains("5 bytes are too few"));
  CHECK_THAT(refusal(length_prefix(100)), Contains("said to be 100 bytes long, the file has 8"));
  CHECK_THAT(refusal(length_prefix(UINT64_MAX) + "{}"),
             Contains("18446744073709551615 bytes long"));
  CHECK_THAT(refusal(length_prefix(0)), Contains("not JSON"));
  CHECK_THAT(refusal("PK\3\4 a zip archive of pickles"), Contains("bytes long, the file has"));
  const std::string whole =
      with_header(R"({"x":{"dtype":"F64","shape":[4],"data_offsets":[0,32]}})", zeros(32));
  for (size_t length = 0; length < whole.size(); ++length) {
    CHECK(refusal(whole.substr(0, length)) != "");
  }
  CHECK_THAT(refusal(whole + "more"), Contains("end at byte 32 of 36"));
}

TEST_CASE("a header over the limit is refused before it is parsed", "[safetensors]") {
  const TemporaryFolder folder;
  const std::string path = folder.file("huge.safetensors");
  folder.write("huge.safetensors", length_prefix(100'000'001) + "{");
  fs::resize_file(path, 100'000'100);  // sparse
  CHECK_THROWS_WITH(SafetensorsFile::open(path), Contains("over the limit"));
}

TEST_CASE("a header that is no object of tensors is a sentence", "[safetensors]") {
  CHECK_THAT(refusal(with_header("not json")),
             Contains("the header is not JSON at its byte 2: 'parse error at line 1, column 2: ") &&
                 !Contains("json.exception"));
  check_headers({{"{} trailing", "not JSON"},
                 {R"({"x":{"dtype":"F64")", "not JSON"},
                 {"{\"\xff\xfe\":{}}", "not JSON"},
                 {"[]", "a list, not an object"},
                 {"null", "null, not an object"},
                 {"3", "not an object"},
                 {"\"x\"", "not an object"},
                 {R"({"x":1})", "where the object of 'x' belongs"},
                 {R"({"x":[]})", "a list where the object of 'x' belongs"},
                 {R"({"x":null})", "null where"},
                 {R"({"__metadata__":[]})", "__metadata__"},
                 {R"({"__metadata__":{"a":1}})", "the text of 'a' belongs"},
                 {R"({"__metadata__":{"a":{}}})", "an object where"},
                 {R"({"x":{}})", "has no dtype"},
                 {R"({"x":{"dtype":"F64","shape":[]}})", "has no data_offsets"},
                 {R"({"x":{"dtype":"F64","data_offsets":[0,8]}})", "has no shape"},
                 {R"({"x":{"type":"F64"}})", "unknown key 'type'"}});
}

TEST_CASE("duplicate keys are a sentence, not the last one wins", "[safetensors]") {
  const std::string x = R"("x":{"dtype":"F64","shape":[1],"data_offsets":[0,8]})";
  check_headers({{"{" + x + "," + x + "}", "'x' stands twice"},
                 {R"({"x":{"dtype":"F64","dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
                  "'dtype' stands twice in tensor 'x'"},
                 {R"({"__metadata__":{"a":"1","a":"2"}})", "'a' stands twice"},
                 {R"({"__metadata__":{},"__metadata__":{}})", "stands twice"}},
                zeros(8));
}

TEST_CASE("lying shapes, dtypes and offsets are sentences with their numbers", "[safetensors]") {
  const auto entry = [](const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return R"({"x":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const auto shaped = [&](const std::string& shape) { return entry("\"F64\"", shape, "[0,16]"); };
  const auto at = [&](const std::string& shape, const std::string& offsets) {
    return entry("\"F64\"", shape, offsets);
  };
  std::string dims = "[1";
  for (int i = 0; i < 200; ++i) dims += ",1";
  check_headers({{entry("\"F99\"", "[2]", "[0,16]"), "unknown dtype 'F99'"},
                 {entry("7", "[2]", "[0,16]"), "number 7 where a dtype's name belongs"},
                 {entry("\"F32\"", "[2]", "[0,16]"), "takes 8 bytes"},
                 {shaped("[-2]"), "-2 in shape is negative"},
                 {shaped("[2.0]"), "where a size belongs"},
                 {shaped("[\"2\"]"), "where a size belongs"},
                 {shaped("[[2]]"), "a list where a size belongs"},
                 {shaped("2"), "where the list shape belongs"},
                 {shaped("{}"), "an object where"},
                 {shaped("[18446744073709551615]"), "larger than any file"},
                 {shaped("[99999999999999999999999]"), "where a size belongs"},
                 {shaped("[9223372036854775807]"), "more bytes than can be counted"},
                 {shaped("[4294967296,4294967296,2]"), "more bytes than can be counted"},
                 {shaped("[0,4294967296,4294967296]"), "more bytes than can be counted"},
                 {shaped("[3]"), "takes 24 bytes, its data_offsets say 16"},
                 {shaped("[0]"), "takes 0 bytes, its data_offsets say 16"},
                 {at("[2]", "[0,32]"), "bytes 0 to 32 of 16"},
                 {at("[2]", "[16,0]"), "bytes 16 to 0"},
                 {at("[2]", "[-16,0]"), "-16 in data_offsets is negative"},
                 {at("[2]", "[9223372036854775800,9223372036854775807]"), "of 16 bytes of data"},
                 {at("[2]", "[0]"), "data_offsets has 1 number, not 2"},
                 {at("[2]", "[0,8,16]"), "data_offsets has 3 numbers"},
                 {at("[1]", "[0,8]"), "end at byte 8 of 16"},
                 {at("[1]", "[8,16]"), "bytes 0 to 8 of the data belong to no tensor"},
                 {at(dims + "]", "[0,8]"), "more than 32 dims"}},
                zeros(16));
}

TEST_CASE("tensors that overlap or leave holes are sentences", "[safetensors]") {
  const auto two = [](const std::string& first, const std::string& second, size_t bytes) {
    return refusal(with_header(R"({"x":{"dtype":"U8","shape":[4],"data_offsets":)" + first +
                                   R"(},"y":{"dtype":"U8","shape":[4],"data_offsets":)" + second +
                                   "}}",
                               zeros(bytes)));
  };
  CHECK_THAT(two("[0,4]", "[2,6]", 6),
             Contains("'y' starts at byte 2 inside another that ends at 4"));
  CHECK_THAT(two("[0,4]", "[0,4]", 4), Contains("inside another"));
  CHECK_THAT(two("[0,4]", "[6,10]", 10), Contains("bytes 4 to 6 of the data belong to no tensor"));
  CHECK(two("[4,8]", "[0,4]", 8) == "");
}

TEST_CASE("booleans that are neither 0 nor 1 are a sentence", "[safetensors]") {
  CHECK_THAT(
      refusal(with_header(R"({"m":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", "\1\2\1")),
      Contains("holds the byte 2 at 1"));
}

TEST_CASE("nesting bombs and long names stay short sentences", "[safetensors]") {
  CHECK(refusal(with_header(std::string(1'000'000, '['))) != "");
  CHECK(refusal(with_header(R"({"x":)" + std::string(1'000'000, '['))) != "");
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += R"({"x":)";
  CHECK(refusal(with_header(objects)) != "");
  CHECK(refusal(with_header("{\"" + std::string(1'000'000, 'n') + "\":1}")) != "");
  CHECK(refusal(with_header("{\"x\":{\"dtype\":\"" + std::string(1'000'000, 'F') + "\"")) != "");
}

TEST_CASE("paths that are no readable file are sentences", "[safetensors]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(SafetensorsFile::open(folder.file("none")), Contains("No such file"));
  CHECK_THROWS_WITH(SafetensorsFile::open(folder.file("")), Contains("is a directory"));
  CHECK_THROWS_WITH(SafetensorsFile::open(""), Contains("cannot be opened"));
  const std::string fifo = folder.file("fifo");
  REQUIRE(::mkfifo(fifo.c_str(), 0600) == 0);
  CHECK_THROWS_WITH(SafetensorsFile::open(fifo), Contains("not a regular file"));
  CHECK_THROWS_WITH(SafetensorsFile::open("/dev/null"), Contains("not a regular file"));
  CHECK_THROWS_WITH(SafetensorsFile::from_fd(-1, "nothing"), Contains("cannot be read"));
  fs::create_symlink("loop", folder.file("loop"));
  CHECK_THROWS_AS(SafetensorsFile::open(folder.file("loop")), Error);
}

TEST_CASE("what cannot be written is a sentence and leaves nothing behind", "[safetensors]") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH(write_safetensors(folder.file("no/such/folder.safetensors"), {}),
                    Contains("cannot write"));
  const NamedTensors complex = {{"c", at::zeros({2}, at::kComplexDouble)}};
  CHECK_THROWS_WITH(write_safetensors(folder.file("c.safetensors"), complex),
                    Contains("ComplexDouble"));
  CHECK(folder.file_count() == 0);
  const at::Tensor x = at::ones({1}, at::kDouble);
  CHECK_THROWS(write_safetensors(folder.file("d.safetensors"), {{"x", x}, {"x", x}}));
  CHECK(folder.file_count() == 0);
}
