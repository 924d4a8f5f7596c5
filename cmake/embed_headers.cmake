# Writes OUT, a C++ source with the text of every header in HEADERS under its path relative to ROOT.
set(entries "")
set(count 0)
foreach(header ${HEADERS})
  file(RELATIVE_PATH path ${ROOT} ${header})
  file(READ ${header} text)
  string(APPEND entries "    {\"${path}\", R\"embedded(${text})embedded\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT}
     "#include <string_view>\nnamespace stretto {\nstruct EmbeddedHeader {\n  std::string_view path, text;\n};\n"
     "extern const EmbeddedHeader kEmbeddedHeaders[];\nextern const int kNumEmbeddedHeaders;\n"
     "const EmbeddedHeader kEmbeddedHeaders[] = {\n${entries}};\nconst int kNumEmbeddedHeaders = ${count};\n"
     "}  // namespace stretto\n")
