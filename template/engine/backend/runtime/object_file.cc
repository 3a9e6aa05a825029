// SPDX-License-Identifier: Apache-2.0
#include "object_file.h"

#include <tvm/ffi/c_api.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

namespace npu {
namespace {

// The needed parts of ELF; not every build machine has <elf.h>.

struct FileHeader {
  uint8_t ident[16];
  uint16_t type, machine;
  uint32_t version;
  uint64_t entry, program_headers, section_headers;
  uint32_t flags;
  uint16_t size, program_header_size, program_header_count;
  uint16_t section_header_size, section_header_count, name_section;
};
static_assert(sizeof(FileHeader) == 64);

struct SectionHeader {
  uint32_t name, type;
  uint64_t flags, address, offset, size;
  uint32_t link, info;
  uint64_t alignment, entry_size;
};
static_assert(sizeof(SectionHeader) == 64);

struct Symbol {
  uint32_t name;
  uint8_t info, other;
  uint16_t section;
  uint64_t value, size;
};
static_assert(sizeof(Symbol) == 24);

struct Relocation {
  uint64_t offset;
  uint32_t type, symbol;
  int64_t addend;
};
static_assert(sizeof(Relocation) == 24);

constexpr uint16_t kRelocatable = 1;
constexpr uint32_t kProgbits = 1, kSymbols = 2, kStrings = 3, kRelocations = 4;
constexpr uint64_t kAllocated = 2, kExecutable = 4, kInfoIsLink = 0x40;
constexpr uint8_t kLocalSection = 3, kWeakFunction = 2 << 4 | 2;

/*! \brief The function in machine code, with the places of the data's address in it. */
struct Code {
  uint16_t machine;
  std::vector<uint8_t> bytes;
  std::vector<Relocation> relocations;
};

/*! \brief The symbol of the data. */
constexpr uint32_t kDataSymbol = 1;

/*! \brief int function(void*, const TVMFFIAny*, int32_t, TVMFFIAny* result): an opaque pointer. */
Code MakeCode(Processor processor) {
  static_assert(kTVMFFIOpaquePtr == 4 && offsetof(TVMFFIAny, type_index) == 0 &&
                offsetof(TVMFFIAny, v_ptr) == 8);
  if (processor == Processor::kX86_64) {
    constexpr uint32_t kRelativeToNext = 2;  // R_X86_64_PC32
    return {62,
            {
                0xF3, 0x0F, 0x1E, 0xFA,           // endbr64
                0x48, 0x8D, 0x05, 0,    0, 0, 0,  // lea  rax, [rip + data]
                0x48, 0xC7, 0x01, 4,    0, 0, 0,  // mov  qword [rcx], 4
                0x48, 0x89, 0x41, 0x08,           // mov  [rcx + 8], rax
                0x31, 0xC0,                       // xor  eax, eax
                0xC3,                             // ret
            },
            {Relocation{7, kRelativeToNext, kDataSymbol, -4}}};
  }
  constexpr uint32_t kPage = 275, kOffsetInPage = 277;  // R_AARCH64_ADR_PREL_PG_HI21, ADD_ABS_LO12
  return {183,
          {
              0x5F, 0x24, 0x03, 0xD5,  // bti  c
              0x08, 0x00, 0x00, 0x90,  // adrp x8, data
              0x08, 0x01, 0x00, 0x91,  // add  x8, x8, :lo12:data
              0x89, 0x00, 0x80, 0x52,  // mov  w9, 4
              0x69, 0x00, 0x00, 0xF9,  // str  x9, [x3]
              0x68, 0x04, 0x00, 0xF9,  // str  x8, [x3, 8]
              0x00, 0x00, 0x80, 0x52,  // mov  w0, 0
              0xC0, 0x03, 0x5F, 0xD6,  // ret
          },
          {Relocation{4, kPage, kDataSymbol, 0}, Relocation{8, kOffsetInPage, kDataSymbol, 0}}};
}

template <typename T>
std::string_view BytesOf(const T* elements, size_t count) {
  return {reinterpret_cast<const char*>(elements), count * sizeof(T)};
}

}  // namespace

std::optional<Processor> FindProcessor(const std::string& triple) {
  if (triple.empty()) {
#if defined(__linux__) && defined(__x86_64__) && defined(__LP64__)
    return Processor::kX86_64;
#elif defined(__linux__) && defined(__aarch64__) && defined(__LP64__)
    return Processor::kAArch64;
#else
    return std::nullopt;
#endif
  }
  // Only on Linux is it certain that linkers read ELF; ilp32 and x32 have other pointers.
  bool is_elf = triple.find("-linux") != std::string::npos &&
                triple.find("x32") == std::string::npos &&
                triple.find("ilp32") == std::string::npos;
  if (is_elf && triple.rfind("x86_64-", 0) == 0) return Processor::kX86_64;
  if (is_elf && triple.rfind("aarch64-", 0) == 0) return Processor::kAArch64;
  return std::nullopt;
}

bool WriteObjectFile(const std::string& path, Processor processor, const std::string& function,
                     std::string_view data) {
  const Code code = MakeCode(processor);
  std::string names(1, '\0');
  auto add_name = [&names](const std::string& name) {
    auto offset = static_cast<uint32_t>(names.size());
    names.append(name).push_back('\0');
    return offset;
  };

  enum { kNone, kText, kTextRelocations, kData, kSymbolTable, kNames, kStackNote, kSectionCount };
  const Symbol symbols[] = {
      {},
      {0, kLocalSection, 0, kData, 0, 0},
      // Weak: a library may hold one program twice, with two modules that share it.
      {add_name(function), kWeakFunction, 0, kText, 0, code.bytes.size()},
  };
  std::string_view contents[kSectionCount] = {};
  SectionHeader headers[kSectionCount] = {};
  auto add_section = [&](int index, const char* name, uint32_t type, uint64_t flags,
                         std::string_view content, uint64_t alignment) {
    headers[index].name = add_name(name);
    headers[index].type = type;
    headers[index].flags = flags;
    headers[index].alignment = alignment;
    contents[index] = content;
  };
  add_section(kText, ".text", kProgbits, kAllocated | kExecutable,
              BytesOf(code.bytes.data(), code.bytes.size()), 16);
  add_section(kTextRelocations, ".rela.text", kRelocations, kInfoIsLink,
              BytesOf(code.relocations.data(), code.relocations.size()), 8);
  add_section(kData, ".rodata.npu", kProgbits, kAllocated, data, 64);
  add_section(kSymbolTable, ".symtab", kSymbols, 0, BytesOf(symbols, std::size(symbols)), 8);
  add_section(kStackNote, ".note.GNU-stack", kProgbits, 0, "", 1);
  add_section(kNames, ".strtab", kStrings, 0, "", 1);
  contents[kNames] = names;
  headers[kTextRelocations].link = kSymbolTable;
  headers[kTextRelocations].info = kText;
  headers[kTextRelocations].entry_size = sizeof(Relocation);
  headers[kSymbolTable].link = kNames;
  headers[kSymbolTable].info = 2;  // The first non-local symbol.
  headers[kSymbolTable].entry_size = sizeof(Symbol);

  uint64_t end = sizeof(FileHeader);
  for (int i = kText; i < kSectionCount; ++i) {
    uint64_t alignment = headers[i].alignment;
    headers[i].offset = end = (end + alignment - 1) / alignment * alignment;
    headers[i].size = contents[i].size();
    end += contents[i].size();
  }
  FileHeader header = {};
  constexpr uint8_t kIdent[] = {0x7F, 'E', 'L', 'F', /*64 bit*/ 2, /*little-endian*/ 1, 1};
  std::memcpy(header.ident, kIdent, sizeof(kIdent));
  header.type = kRelocatable;
  header.machine = code.machine;
  header.version = 1;
  header.section_headers = (end + 7) / 8 * 8;
  header.size = sizeof(FileHeader);
  header.section_header_size = sizeof(SectionHeader);
  header.section_header_count = kSectionCount;
  header.name_section = kNames;

  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return false;
  uint64_t at = 0;
  bool good = true;
  auto write = [&](uint64_t offset, std::string_view content) {
    static constexpr char kPadding[64] = {};
    good = good && std::fwrite(kPadding, 1, offset - at, file) == offset - at;
    good = good && std::fwrite(content.data(), 1, content.size(), file) == content.size();
    at = offset + content.size();
  };
  write(0, BytesOf(&header, 1));
  for (int i = kText; i < kSectionCount; ++i) write(headers[i].offset, contents[i]);
  write(header.section_headers, BytesOf(headers, kSectionCount));
  return std::fclose(file) == 0 && good;
}

}  // namespace npu
