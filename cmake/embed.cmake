# cmake -DINPUT=file -DOUTPUT=file.cc -DNAME=page_bytes -P embed.cmake: a file as an array in namespace quire::serve.
file(READ "${INPUT}" bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
string(REPLACE "0x0a," "0x0a,\n" bytes "${bytes}")  # lines of the array are those of the file
file(WRITE "${OUTPUT}" "#include <cstddef>\n\nnamespace quire::serve {\n
extern const unsigned char ${NAME}[];\nextern const size_t ${NAME}_size;\n
const unsigned char ${NAME}[] = {\n${bytes}\n};\nconst size_t ${NAME}_size = sizeof(${NAME});\n
}  // namespace quire::serve\n")
