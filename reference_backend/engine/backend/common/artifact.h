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
 * and, if the program's inputs and outputs differ from those of the region, "ports" (JSON). A
 * reference to an artifact that is stored elsewhere has the one section "external".
 */
#ifndef COMMON_ARTIFACT_H_
#define COMMON_ARTIFACT_H_

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace npu {

/*! \brief The version of the format; no other version is read. */
constexpr uint32_t kArtifactVersion = 2;
/*! \brief The alignment of sections, and of an artifact's bytes when it is executed. */
constexpr size_t kArtifactAlignment = 64;

/*! \brief The sections of an artifact; they refer to its bytes. */
struct Artifact {
  std::string_view manifest;
  std::string_view graph;
  std::string_view program;
  /*! \brief Empty if the program has the region's inputs and outputs, unchanged. */
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

/*! \brief Reads the bytes of an artifact; throws an ArtifactError for other bytes. */
Artifact ReadArtifact(const uint8_t* bytes, size_t size);

/*! \brief A reference to an artifact that is linked into the same library. */
struct ArtifactReference {
  /*! \brief The function of the library that returns its address. */
  std::string function;
  uint64_t size = 0;
  /*! \brief The checksum in its header. */
  uint64_t checksum = 0;
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
