// SPDX-License-Identifier: Apache-2.0
#include "artifact.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Artifacts are little-endian; here they would have to be converted."
#endif

namespace npu {
namespace {

// The first byte is not ASCII, and transfers that convert line ends change the rest.
constexpr char kMagic[8] = {'\x89', 'N', 'P', 'U', '\r', '\n', '\x1a', '\n'};
constexpr size_t kChecksumOffset = 24;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t section_count;
  uint64_t size;
  uint64_t checksum;
};
static_assert(sizeof(Header) == 32 && offsetof(Header, checksum) == kChecksumOffset);

struct Section {
  char id[8];
  uint64_t offset;
  uint64_t size;
};
static_assert(sizeof(Section) == 24);

constexpr const char* kManifest = "manifest";
constexpr const char* kGraph = "graph";
constexpr const char* kProgram = "program";
constexpr const char* kPorts = "ports";
constexpr const char* kPieces = "pieces";
constexpr const char* kData = "data";
constexpr const char* kExternal = "external";

size_t Align(size_t size) {
  return (size + kArtifactAlignment - 1) / kArtifactAlignment * kArtifactAlignment;
}

/*! \brief The checksum of a whole artifact, ignoring its checksum field. */
uint64_t ArtifactChecksum(const uint8_t* bytes, size_t size) {
  uint8_t header[sizeof(Header)];
  std::memcpy(header, bytes, sizeof(header));
  std::memset(header + kChecksumOffset, 0, sizeof(Header::checksum));
  uint64_t seed = Checksum(header, sizeof(header));
  return Checksum(bytes + sizeof(header), size - sizeof(header), seed);
}

[[noreturn]] void Corrupt(const std::string& defect) {
  throw ArtifactError("is corrupt: " + defect + "; copy it again, or compile the model again");
}

/*! \brief Checks magic, version and size, in this order for the right reason. */
Header ReadHeader(const uint8_t* bytes, size_t size) {
  Header header = {};
  std::memcpy(&header, bytes, std::min(size, sizeof(header)));
  if (std::memcmp(header.magic, kMagic, std::min(size, sizeof(kMagic))) != 0) {
    // Version 1 had no magic: it began with its version, in 8 bytes.
    constexpr char kVersion1[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    if (std::memcmp(header.magic, kVersion1, sizeof(kVersion1)) == 0) {
      throw ArtifactError("has the format version 1, which is older than version " +
                          std::to_string(kArtifactVersion) +
                          ", the oldest that is read here; compile the model again");
    }
    throw ArtifactError("does not begin as an artifact does: these are other bytes, or damaged");
  }
  constexpr size_t kVersionEnd = offsetof(Header, version) + sizeof(header.version);
  if (size >= kVersionEnd && header.version != kArtifactVersion &&
      header.version != kBundleVersion) {
    bool newer = header.version > kBundleVersion;
    throw ArtifactError("has the format version " + std::to_string(header.version) +
                        (newer
                             ? ", which is newer than version " + std::to_string(kBundleVersion) +
                                   ", the newest that is read here; "
                             : ", which is older than version " + std::to_string(kArtifactVersion) +
                                   ", the oldest that is read here; ") +
                        (newer ? "update this backend here, or compile" : "compile") +
                        " the model again with the version that is installed here");
  }
  if (size < sizeof(header) || size < header.size) {
    std::string expected = size < sizeof(header) ? "" : " of " + std::to_string(header.size);
    throw ArtifactError("is truncated: only " + std::to_string(size) + expected +
                        " bytes are here; copy it again, or compile the model again");
  }
  if (size > header.size) {
    Corrupt("it has " + std::to_string(size) + " bytes instead of " + std::to_string(header.size));
  }
  return header;
}

using NamedSection = std::pair<const char*, Pieces>;

/*! \brief The header of an artifact and the table of its sections. */
struct Contents {
  Header header = {};
  std::vector<Section> table;
};

Contents ListSections(const std::vector<NamedSection>& sections, uint32_t version) {
  Contents contents;
  Header& header = contents.header;
  std::memcpy(header.magic, kMagic, sizeof(kMagic));
  header.version = version;
  header.section_count = static_cast<uint32_t>(sections.size());
  size_t size = sizeof(header) + sections.size() * sizeof(Section);
  for (const auto& [id, content] : sections) {
    Section section = {};
    section.offset = Align(size);
    section.size = SizeOf(content);
    std::memcpy(section.id, id, std::min(std::strlen(id), sizeof(section.id)));
    size = section.offset + section.size;
    contents.table.push_back(section);
  }
  header.size = size;
  return contents;
}

void WriteSections(const std::vector<NamedSection>& sections, const Contents& contents, char* to) {
  size_t end = 0;
  const auto write = [&](size_t offset, const void* data, size_t size) {
    std::memset(to + end, 0, offset - end);
    if (size > 0) std::memcpy(to + offset, data, size);
    end = offset + size;
  };
  const Header& header = contents.header;
  write(0, &header, sizeof(header));
  write(end, contents.table.data(), contents.table.size() * sizeof(Section));
  for (size_t i = 0; i < sections.size(); ++i) {
    write(contents.table[i].offset, nullptr, 0);
    for (std::string_view piece : sections[i].second) write(end, piece.data(), piece.size());
  }
  uint64_t checksum = ArtifactChecksum(reinterpret_cast<const uint8_t*>(to), header.size);
  std::memcpy(to + kChecksumOffset, &checksum, sizeof(checksum));
}

std::string WriteSections(const std::vector<NamedSection>& sections, uint32_t version) {
  const Contents contents = ListSections(sections, version);
  std::string bytes(contents.header.size, '\0');
  WriteSections(sections, contents, bytes.data());
  return bytes;
}

std::vector<NamedSection> SectionsOf(const Artifact& artifact) {
  std::vector<NamedSection> sections = {NamedSection(kManifest, {artifact.manifest}),
                                        NamedSection(kGraph, {artifact.graph}),
                                        NamedSection(kProgram, artifact.program)};
  if (!artifact.ports.empty()) sections.emplace_back(kPorts, Pieces{artifact.ports});
  return sections;
}

/*! \brief The contents of exactly these sections, the last `optional` of which may be missing. */
std::vector<std::string_view> ReadSections(const uint8_t* bytes, size_t size,
                                           std::vector<const char*> ids, size_t optional = 0) {
  Header header = ReadHeader(bytes, size);
  if (ArtifactChecksum(bytes, size) != header.checksum) Corrupt("its checksum is wrong");
  const size_t least = ids.size() - optional;
  if (header.section_count >= least && header.section_count < ids.size()) {
    ids.resize(header.section_count);
  }
  size_t end = sizeof(header) + ids.size() * sizeof(Section);
  if (header.section_count != ids.size() || end > size) {
    Corrupt("it has " + std::to_string(header.section_count) + " sections instead of " +
            std::to_string(least));
  }
  std::vector<std::string_view> contents;
  for (const char* id : ids) {
    Section section;
    size_t at = sizeof(header) + contents.size() * sizeof(section);
    std::memcpy(&section, bytes + at, sizeof(section));
    std::string name = std::string("its section '") + id + "'";
    if (std::strncmp(section.id, id, sizeof(section.id)) != 0) Corrupt(name + " is missing");
    if (section.offset % kArtifactAlignment != 0 || section.offset < end) {
      Corrupt(name + " begins at a wrong place");
    }
    if (section.offset > size || section.size > size - section.offset) {
      Corrupt(name + " reaches beyond its end");
    }
    contents.emplace_back(reinterpret_cast<const char*>(bytes) + section.offset, section.size);
    end = section.offset + section.size;
  }
  return contents;
}

constexpr size_t kSectionsOfRegion = 4;

bool IsBefore(std::string_view one, std::string_view other) { return one.data() < other.data(); }

/*! \brief The pieces of a program in a bundle. None has a part of the data twice: a program is
 *  never larger than the data. */
Pieces ReadPieces(std::string_view table, std::string_view data) {
  uint64_t entry[2];
  if (table.size() % sizeof(entry) != 0) Corrupt("its list of pieces is cut off");
  Pieces pieces;
  for (size_t at = 0; at < table.size(); at += sizeof(entry)) {
    std::memcpy(entry, table.data() + at, sizeof(entry));
    const auto [offset, size] = entry;
    const bool is_last = at + sizeof(entry) == table.size();
    if (offset > data.size() || size > data.size() - offset) {
      Corrupt("a piece of its program reaches beyond its data");
    }
    if (offset % kArtifactAlignment != 0 || size == 0 ||
        (size % kArtifactAlignment != 0 && !is_last)) {
      Corrupt("a piece of its program begins or ends at a wrong place");
    }
    pieces.push_back(data.substr(offset, size));
  }
  Pieces sorted = pieces;
  std::sort(sorted.begin(), sorted.end(), IsBefore);
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1].data() + sorted[i - 1].size() > sorted[i].data()) {
      Corrupt("its program has one piece twice");
    }
  }
  return pieces;
}

/*! \brief The length in bytes of the character at `i`; 0 if it is not UTF-8. */
size_t CharacterLength(std::string_view text, size_t i) {
  auto byte = [&](size_t at) { return static_cast<uint8_t>(at < text.size() ? text[at] : 0); };
  uint8_t first = byte(i);
  size_t length = first < 0x80 ? 1 : first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  bool valid = length > 0 && first < 0xF5;
  for (size_t k = 1; valid && k < length; ++k) valid = (byte(i + k) & 0xC0) == 0x80;
  // Reject overlong encodings, surrogates, and code points beyond the last one.
  uint8_t second = byte(i + 1);
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second >= 0xA0) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second >= 0x90)) {
    valid = false;
  }
  return valid ? length : 0;
}

}  // namespace

bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    size_t length = CharacterLength(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string Readable(const std::string& text, bool may_have_lines) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    size_t length = CharacterLength(text, i);
    auto last = static_cast<uint8_t>(text[i + (length == 2 ? 1 : 0)]);
    // C1 controls have two bytes in UTF-8.
    bool is_control = length == 1   ? last < 0x20 || last == 0x7F
                      : length == 2 ? text[i] == '\xC2' && last < 0xA0
                                    : false;
    if (length == 0) {
      result += '?';
    } else if (is_control && !(may_have_lines && (last == '\n' || last == '\t'))) {
      constexpr char kDigits[] = "0123456789abcdef";
      result += {'\\', 'x', kDigits[last >> 4], kDigits[last & 15]};
    } else {
      result += text.substr(i, length);
    }
    i += std::max<size_t>(length, 1);
  }
  return result;
}

uint64_t Checksum(const uint8_t* bytes, size_t size, uint64_t seed) {
  // Eight independent lanes, for instruction-level parallelism. Each step is invertible, so no
  // change is lost; the rotation carries it from high bits to low ones.
  constexpr size_t kLanes = 8;
  constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
  auto mix = [](uint64_t state, uint64_t word) {
    state = (state ^ word) * kOdd;
    return state << 29 | state >> 35;
  };
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(seed, i + 1);
  uint64_t words[kLanes];
  size_t at = 0;
  constexpr size_t kBlock = sizeof(words);
  for (; size - at >= kBlock; at += kBlock) {
    std::memcpy(words, bytes + at, kBlock);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
  }
  std::memset(words, 0, sizeof(words));
  if (at < size) std::memcpy(words, bytes + at, size - at);
  uint64_t result = mix(seed, size);
  for (size_t i = 0; i < kLanes; ++i) result = mix(result, mix(lanes[i], words[i]));
  return result ^ result >> 32;
}

size_t SizeOf(const Pieces& pieces) {
  size_t size = 0;
  for (std::string_view piece : pieces) size += piece.size();
  return size;
}

void Join(const Pieces& pieces, char* to) {
  for (std::string_view piece : pieces) to += piece.copy(to, piece.size());
}

std::string WriteArtifact(const Artifact& artifact) {
  return WriteSections(SectionsOf(artifact), kArtifactVersion);
}

size_t SizeOf(const Artifact& artifact) {
  return ListSections(SectionsOf(artifact), kArtifactVersion).header.size;
}

void WriteArtifact(const Artifact& artifact, char* to) {
  const std::vector<NamedSection> sections = SectionsOf(artifact);
  WriteSections(sections, ListSections(sections, kArtifactVersion), to);
}

size_t Bundle::size() const { return ListSections(Sections(), kBundleVersion).header.size; }

void Bundle::Write(char* to) const {
  const std::vector<NamedSection> sections = Sections();
  WriteSections(sections, ListSections(sections, kBundleVersion), to);
}

std::vector<NamedSection> Bundle::Sections() const {
  std::vector<NamedSection> sections;
  for (size_t i = 0; i < artifacts_.size(); ++i) {
    sections.emplace_back(kManifest, Pieces{artifacts_[i].manifest});
    sections.emplace_back(kGraph, Pieces{artifacts_[i].graph});
    sections.emplace_back(kPieces, Pieces{tables_[i]});
    sections.emplace_back(kPorts, Pieces{artifacts_[i].ports});
  }
  sections.emplace_back(kData, data_);
  return sections;
}

std::vector<Artifact> ReadArtifacts(const uint8_t* bytes, size_t size) {
  const Header header = ReadHeader(bytes, size);
  if (header.version == kArtifactVersion) {
    auto contents = ReadSections(bytes, size, {kManifest, kGraph, kProgram, kPorts}, 1);
    contents.resize(4);
    return {{contents[0], contents[1], {contents[2]}, contents[3]}};
  }
  const size_t count = header.section_count / kSectionsOfRegion;
  std::vector<const char*> ids;
  for (size_t i = 0; i < std::min(count, size / sizeof(Section)); ++i) {
    ids.insert(ids.end(), {kManifest, kGraph, kPieces, kPorts});
  }
  ids.push_back(kData);
  const auto contents = ReadSections(bytes, size, ids);
  std::vector<Artifact> artifacts;
  for (size_t i = 0; i + 1 < contents.size(); i += kSectionsOfRegion) {
    artifacts.push_back({contents[i], contents[i + 1], ReadPieces(contents[i + 2], contents.back()),
                         contents[i + 3]});
  }
  if (artifacts.empty()) Corrupt("it has no region");
  return artifacts;
}

size_t SharedSize(const std::vector<Artifact>& bundle, size_t index) {
  // Stretches of the data that others have, without overlaps, by their begin.
  std::map<const char*, const char*> others;
  Pieces pieces;
  for (size_t i = 0; i < bundle.size(); ++i) {
    if (i == index) continue;
    pieces.insert(pieces.end(), bundle[i].program.begin(), bundle[i].program.end());
  }
  std::sort(pieces.begin(), pieces.end(), IsBefore);
  const char* end = nullptr;
  for (std::string_view piece : pieces) {
    const char* begin = end == nullptr ? piece.data() : std::max(end, piece.data());
    end = std::max(begin, piece.data() + piece.size());
    if (begin < end) others[begin] = end;
  }
  size_t shared = 0;
  for (std::string_view piece : bundle[index].program) {
    const char* const piece_end = piece.data() + piece.size();
    auto it = others.upper_bound(piece.data());
    if (it != others.begin()) --it;
    for (; it != others.end() && it->first < piece_end; ++it) {
      const char* const begin = std::max(it->first, piece.data());
      const char* const common_end = std::min(it->second, piece_end);
      if (begin < common_end) shared += static_cast<size_t>(common_end - begin);
    }
  }
  return shared;
}

std::string WriteReference(const ArtifactReference& reference) {
  std::vector<uint64_t> numbers = {reference.size, reference.checksum};
  if (reference.index.has_value()) numbers.push_back(*reference.index);
  std::string content(reinterpret_cast<const char*>(numbers.data()), numbers.size() * 8);
  content += reference.function;
  return WriteSections({NamedSection(kExternal, {content})},
                       reference.index.has_value() ? kBundleVersion : kArtifactVersion);
}

bool IsReference(const uint8_t* bytes, size_t size) {
  Header header;
  if (size < sizeof(header)) return false;
  std::memcpy(&header, bytes, sizeof(header));
  return header.section_count == 1;
}

ArtifactReference ReadReference(const uint8_t* bytes, size_t size) {
  std::string_view content = ReadSections(bytes, size, {kExternal})[0];
  const bool is_in_bundle = ReadHeader(bytes, size).version == kBundleVersion;
  uint64_t numbers[3] = {};
  const size_t numbers_size = is_in_bundle ? sizeof(numbers) : 2 * sizeof(numbers[0]);
  if (content.size() < numbers_size) Corrupt("its reference is too short");
  std::memcpy(numbers, content.data(), numbers_size);
  ArtifactReference reference = {std::string(content.substr(numbers_size)), numbers[0], numbers[1]};
  if (is_in_bundle) reference.index = numbers[2];
  return reference;
}

uint64_t StoredChecksum(const uint8_t* artifact) {
  uint64_t checksum = 0;
  std::memcpy(&checksum, artifact + kChecksumOffset, sizeof(checksum));
  return checksum;
}

}  // namespace npu
