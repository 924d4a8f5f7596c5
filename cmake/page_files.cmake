# cmake -DFOLDER=stretto/server/page -DOUT=page_files.cc -P page_files.cmake: a source file that holds the files of a
# folder, index.html as "/", openapi.json as "/openapi.json", the others as "/page/NAME".
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_json "application/json")
file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT names)
set(number 0)
foreach(name ${names})
  file(READ ${FOLDER}/${name} bytes HEX)
  string(REGEX REPLACE "(................................................................)" "\\1\n" bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(REGEX MATCH "[a-z]+$" ending ${name})
  if(NOT DEFINED type_${ending})
    message(FATAL_ERROR "${FOLDER}/${name}: no content type for .${ending}")
  endif()
  set(path "/page/${name}")
  if(name STREQUAL "index.html")
    set(path "/")
  elseif(name STREQUAL "openapi.json")
    set(path "/openapi.json")
  endif()
  string(APPEND arrays "constexpr unsigned char kBytes${number}[] = {\n${bytes}};\n")
  string(APPEND files "    {\"${path}\", \"${type_${ending}}\", text(kBytes${number})},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUT} "// Written by cmake/page_files.cmake.
#include \"stretto/server/page.h\"

namespace stretto {
namespace {

${arrays}
template <std::size_t kSize>
std::string_view text(const unsigned char (&bytes)[kSize]) {
  return {reinterpret_cast<const char*>(bytes), kSize};
}

}  // namespace

std::span<const PageFile> page_files() {
  static const PageFile files[] = {
${files}  };
  return files;
}

}  // namespace stretto
")
