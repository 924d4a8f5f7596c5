"""How long functions are, and how many public methods a class has: in C++ by braces, in Python by its syntax tree."""

import ast
import collections
import re

Function = collections.namedtuple("Function", "name line lines")
LITERAL = re.compile(r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|//[^\n]*|/\*.*?\*/', re.S)
SCOPE = re.compile(r"\b(?:namespace|extern|class|struct|union|enum)\b[^;(){}=]*$")
CLASS = re.compile(r"(?:^|[;{}>]|\b(?:public|private|protected):)\s*(class|struct)\s+(?:alignas\([^)]*\)\s+)?"
                   r"([\w:]+)(?:\s+final)?(?:\s*:[^:][^{;]*)?$")
DIGIT_SEPARATOR = re.compile(r"(?<=\d)'(?=\d)")


def plain(text: str) -> str:
    """Without comments, texts and preprocessor lines, each line in its place."""
    def blank(match):
        return '""' + "\n" * match[0].count("\n") if match[0][0] in "R\"'" else "\n" * match[0].count("\n")
    text = LITERAL.sub(blank, DIGIT_SEPARATOR.sub("", text))
    return re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m[0].count("\n"), text, flags=re.M)


def of_cpp(text: str) -> tuple:
    """(functions, {class: its public methods})

    >>> of_cpp('''class A : public B {
    ...  public:
    ...   A() : x_{1} {}
    ...   int f() const { return g([] { return 1; }); }
    ...   static void h(int n = 2);
    ...   using T = int (*)(int);
    ...   void operator()(int) = delete;
    ...  private:
    ...   void g();
    ... };
    ... int A::k(std::vector<int> v) {
    ...   if (v.empty()) {
    ...     return 1;
    ...   }
    ...   return 2;
    ... }''')
    ([Function(name='A', line=3, lines=1), Function(name='f', line=4, lines=1), \
Function(name='A::k', line=11, lines=6)], {'A': ['f', 'h']})
    """
    text = plain(text)
    functions, classes = [], {}
    scopes = [["namespace", "", False]]  # kind, name, whether what follows is public
    start, line, statement_line, pending = 0, 1, 1, None
    depth_in_function, began = 0, None
    for match in re.finditer(r"[{};\n]|\b(?:public|private|protected)\s*:(?!:)", text):
        mark = match[0]
        if mark == "\n":
            line += 1
            if not text[start:match.start()].strip():
                statement_line = line
            continue
        if began is not None:  # inside a function
            depth_in_function += (mark == "{") - (mark == "}")
            if mark == "}" and depth_in_function == 0:
                functions.append(Function(began[0], began[1], line - began[1] + 1))
                began, start, statement_line = None, match.end(), line
            continue
        kind = scopes[-1]
        if mark[0] == "p":
            kind[2] = mark.startswith("public")
            start, statement_line = match.end(), line
            continue
        statement = text[start:match.start()].strip()
        if mark == "{":
            found = CLASS.search(statement)
            if found:
                scopes.append(["class", found[2], found[1] == "struct"])
                classes.setdefault(found[2], [])
            elif SCOPE.search(statement):
                scopes.append(["namespace", "", False])
            elif "(" in statement and not re.search(r"=\s*$|\breturn$", statement):
                if re.search(r"[\w>)]\s*:[^:].*[\w>]$", statement, re.S) and not statement.endswith((")", "const")):
                    scopes.append(["initializer", "", False])  # of a member: A() : x_{1}
                    pending = start, statement_line
                    start = match.end()
                    continue
                name = name_of(statement)
                note(classes, kind, name, statement)
                began, depth_in_function = (name, statement_line), 1
            else:
                scopes.append(["values", "", False])
        elif mark == "}":
            closed = scopes.pop() if len(scopes) > 1 else ["", "", False]
            if closed[0] == "initializer":
                start, statement_line = pending
                continue
            if closed[0] == "values":
                continue
        elif "(" in statement:
            note(classes, kind, name_of(statement), statement)
        start, statement_line = match.end(), line
    return functions, classes


def name_of(statement: str) -> str:
    statement = re.sub(r"\b(?:alignas|decltype|requires|explicit|noexcept)\s*\([^()]*\)", " ", statement)
    found = re.search(r"(operator\s*\S+?|[\w:~]+)\s*\(", statement)
    return found[1] if found else "?"


def note(classes: dict, scope: list, name: str, statement: str):
    """A method where the scope is public: no constructor, operator or alias, and each name once."""
    kind, owner, is_public = scope
    if kind != "class" or not is_public or name.lstrip("~") == owner.split("::")[-1] or "operator" in name:
        return
    if re.match(r"(?:using|typedef|friend|static_assert)\b", statement):
        return
    if name not in classes[owner]:
        classes[owner].append(name)


def of_python(text: str) -> tuple:
    """The same.

    >>> of_python('''class A:
    ...     def f(self):
    ...         pass
    ...     def _g(self):
    ...         pass
    ... ''')
    ([Function(name='f', line=2, lines=2), Function(name='_g', line=4, lines=2)], {'A': ['f']})
    """
    functions, classes = [], {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            functions.append(Function(node.name, node.lineno, node.end_lineno - node.lineno + 1))
        elif isinstance(node, ast.ClassDef):
            classes[node.name] = [f.name for f in node.body if isinstance(f, ast.FunctionDef) and f.name[0] != "_"]
    return functions, classes
