// SPDX-License-Identifier: Apache-2.0
/*!
 * \file artifact.h
 * \brief The format of a compiled region: manifest, graph and program in one block of bytes.
 *
 * docs/artifact.md of the template describes it; all numbers are little-endian:
 *
 *     0   8  magic
 *     8   4  format version
 *     12  4  number of sections
 *     16  8  size of the whole in bytes
 *     24  8  checksum of all bytes, with this field as 0
 *     32     for each section: 8 bytes id (padded with zeros), 8 bytes offset, 8 bytes size
 *
 * Sections begin at multiples of 64: "manifest" and "graph" (JSON), "program" (the driver's bytes),
 * and, if the program's inputs and outputs differ from those of the region, or some may share a
 * buffer, "ports" (JSON). A
 * bundle has "manifest", "graph", "pieces" and "ports" of each of its regions, then "data", of
 * which the programs are pieces. A reference to what is stored elsewhere has the one section
 * "external".
 */
#ifndef COMMON_ARTIFACT_H_
#define COMMON_ARTIFACT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace npu {

/*! \brief The version of the format of an artifact, and of a reference to one. */
constexpr uint32_t kArtifactVersion = 2;
/*! \brief The version of the format of a bundle, and of a reference to a part of one. No other
 *  versions are read. */
constexpr uint32_t kBundleVersion = 3;
/*! \brief The alignment of sections, and of an artifact's bytes when it is executed. */
constexpr size_t kArtifactAlignment = 64;

/*! \brief Bytes in several places, in order. */
using Pieces = std::vector<std::string_view>;

/*! \brief The number of bytes. */
size_t SizeOf(const Pieces& pieces);

/*! \brief Copies the bytes to one place. */
void Join(const Pieces& pieces, char* to);

/*! \brief The sections of an artifact; they refer to its bytes. */
struct Artifact {
  std::string_view manifest;
  std::string_view graph;
  /*! \brief In one piece, unless the artifact is part of a bundle. */
  Pieces program;
  /*! \brief Empty if the program has the region's inputs and outputs, unchanged, each in a buffer
   * of its own. */
  std::string_view ports = {};
};

/*!
 * \brief Text from an artifact or a driver, made safe to show.
 *
 * Invalid UTF-8 becomes question marks. Control characters, which a terminal would interpret,
 * become \xNN, except line ends and tabs if the text may have lines.
 */
std::string Readable(const std::string& text, bool may_have_lines = false);

/*! \brief Why bytes are not a valid artifact; what() continues "the artifact ". */
class ArtifactError : public std::runtime_error {
 public:
  explicit ArtifactError(const std::string& text) : std::runtime_error(Readable(text)) {}
};

/*! \brief The bytes of an artifact. */
std::string WriteArtifact(const Artifact& artifact);

/*! \brief The number of bytes of an artifact. */
size_t SizeOf(const Artifact& artifact);

/*! \brief Writes the bytes of an artifact to memory of its size. */
void WriteArtifact(const Artifact& artifact, char* to);

/*! \brief Artifacts that store equal parts of their programs once. */
class Bundle {
 public:
  /*! \brief Finds these parts; refers to the artifacts. */
  explicit Bundle(const std::vector<Artifact>& artifacts);

  /*! \brief The bytes of programs, and how many of these need not be stored again. */
  size_t program_size() const { return program_size_; }
  size_t shared_size() const { return program_size_ - stored_size_; }

  /*! \brief The number of bytes of the bundle. */
  size_t size() const;
  /*! \brief Writes the bundle to memory of its size. */
  void Write(char* to) const;

 private:
  std::vector<std::pair<const char*, Pieces>> Sections() const;

  std::vector<Artifact> artifacts_;
  /*! \brief For each artifact, place and size of the pieces of its program. */
  std::vector<std::string> tables_;
  Pieces data_;
  size_t program_size_ = 0;
  size_t stored_size_ = 0;
};

/*! \brief Reads the bytes of an artifact, or of a bundle; throws an ArtifactError for others. */
std::vector<Artifact> ReadArtifacts(const uint8_t* bytes, size_t size);

/*! \brief How many bytes of the program of one artifact of a bundle belong to others too. */
size_t SharedSize(const std::vector<Artifact>& bundle, size_t index);

/*! \brief A reference to an artifact that is linked into the same library. */
struct ArtifactReference {
  /*! \brief The function of the library that returns its address. */
  std::string function;
  uint64_t size = 0;
  /*! \brief The checksum in its header. */
  uint64_t checksum = 0;
  /*! \brief Which artifact of a bundle, if it is one. */
  std::optional<uint64_t> index = std::nullopt;
};

/*! \brief The bytes of a reference. */
std::string WriteReference(const ArtifactReference& reference);

/*! \brief Whether bytes claim to be a reference. */
bool IsReference(const uint8_t* bytes, size_t size);

/*! \brief Reads the bytes of a reference; throws an ArtifactError for other bytes. */
ArtifactReference ReadReference(const uint8_t* bytes, size_t size);

/*! \brief The checksum in the header of bytes that are an artifact. */
uint64_t StoredChecksum(const uint8_t* artifact);

/*! \brief Whether a text is UTF-8. */
bool IsUtf8(std::string_view text);

/*! \brief A checksum that runs as fast as memory and changes with each changed bit. */
uint64_t Checksum(const uint8_t* bytes, size_t size, uint64_t seed = 0);

}  // namespace npu

#endif  // COMMON_ARTIFACT_H_
