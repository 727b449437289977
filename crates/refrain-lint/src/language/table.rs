//! Roles of syntax nodes for each grammar: functions, calls, loops, and so on.

use super::Lang;
use crate::item::Role::{self, *};

type Table = &'static [(Role, &'static [&'static str])];

/// Role table of a language.
pub(super) fn role_table(lang: Lang) -> Table {
    match lang {
        Lang::Python => PYTHON,
        Lang::JavaScript | Lang::TypeScript | Lang::Tsx => JAVASCRIPT,
        Lang::Go => GO,
        Lang::Java => JAVA,
        Lang::Rust => RUST,
        Lang::Ruby => RUBY,
        Lang::Php => PHP,
    }
}

const PYTHON: Table = &[
    (Function, &["function_definition", "lambda"]),
    (Class, &["class_definition"]),
    (Call, &["call"]),
    (Loop, &["for_statement", "while_statement"]),
    (Try, &["try_statement"]),
    (Catch, &["except_clause", "except_group_clause"]),
    (Finally, &["finally_clause"]),
    (
        If,
        &["if_statement", "elif_clause", "conditional_expression"],
    ),
    (With, &["with_statement"]),
    (
        Assign,
        &["assignment", "named_expression", "augmented_assignment"],
    ),
    (Pair, &["pair", "keyword_argument", "default_parameter"]),
    (Return, &["return_statement", "yield"]),
    (
        Exit,
        &["break_statement", "continue_statement", "raise_statement"],
    ),
    (Text, &["string_content"]),
    (Comment, &["comment"]),
    (Attribute, &["decorator"]),
];

const JAVASCRIPT: Table = &[
    (
        Function,
        &[
            "function_declaration",
            "function_expression",
            "arrow_function",
            "method_definition",
            "generator_function",
            "generator_function_declaration",
        ],
    ),
    (
        Class,
        &["class_declaration", "class", "abstract_class_declaration"],
    ),
    (Call, &["call_expression", "new_expression"]),
    (
        Loop,
        &[
            "for_statement",
            "for_in_statement",
            "while_statement",
            "do_statement",
        ],
    ),
    (Try, &["try_statement"]),
    (Catch, &["catch_clause"]),
    (Finally, &["finally_clause"]),
    (If, &["if_statement", "ternary_expression"]),
    (
        Assign,
        &[
            "variable_declarator",
            "assignment_expression",
            "augmented_assignment_expression",
            "field_definition",
            "public_field_definition",
        ],
    ),
    (Pair, &["pair", "shorthand_property_identifier"]),
    (Return, &["return_statement"]),
    (
        Exit,
        &["break_statement", "continue_statement", "throw_statement"],
    ),
    (Text, &["string_fragment"]),
    (Comment, &["comment"]),
    (Attribute, &["decorator"]),
];

const GO: Table = &[
    (
        Function,
        &["function_declaration", "method_declaration", "func_literal"],
    ),
    (Call, &["call_expression"]),
    (Loop, &["for_statement"]),
    (If, &["if_statement", "expression_case"]),
    (
        Assign,
        &[
            "short_var_declaration",
            "assignment_statement",
            "var_spec",
            "const_spec",
        ],
    ),
    (Pair, &["keyed_element"]),
    (Return, &["return_statement"]),
    (Exit, &["break_statement", "continue_statement"]),
    (
        Text,
        &[
            "interpreted_string_literal_content",
            "raw_string_literal_content",
        ],
    ),
    (Comment, &["comment"]),
    (Deferred, &["defer_statement"]),
];

const JAVA: Table = &[
    (
        Function,
        &[
            "method_declaration",
            "constructor_declaration",
            "lambda_expression",
        ],
    ),
    (
        Class,
        &[
            "class_declaration",
            "record_declaration",
            "interface_declaration",
            "enum_declaration",
        ],
    ),
    (Call, &["method_invocation", "object_creation_expression"]),
    (
        Loop,
        &[
            "for_statement",
            "enhanced_for_statement",
            "while_statement",
            "do_statement",
        ],
    ),
    (Try, &["try_statement", "try_with_resources_statement"]),
    (Catch, &["catch_clause"]),
    (Finally, &["finally_clause"]),
    (If, &["if_statement", "ternary_expression"]),
    (
        Assign,
        &["variable_declarator", "assignment_expression", "resource"],
    ),
    (Pair, &["element_value_pair"]),
    (Return, &["return_statement"]),
    (
        Exit,
        &["break_statement", "continue_statement", "throw_statement"],
    ),
    (Text, &["string_fragment", "multiline_string_fragment"]),
    (Comment, &["line_comment", "block_comment"]),
    (Attribute, &["annotation", "marker_annotation"]),
];

const RUST: Table = &[
    (Function, &["function_item", "closure_expression"]),
    (Class, &["impl_item", "trait_item"]),
    (Call, &["call_expression", "macro_invocation"]),
    (
        Loop,
        &["for_expression", "while_expression", "loop_expression"],
    ),
    (If, &["if_expression", "match_arm"]),
    (
        Assign,
        &[
            "let_declaration",
            "assignment_expression",
            "const_item",
            "static_item",
            "compound_assignment_expr",
        ],
    ),
    (Pair, &["field_initializer", "shorthand_field_initializer"]),
    (Return, &["return_expression"]),
    (Exit, &["break_expression", "continue_expression"]),
    (Text, &["string_content"]),
    (Comment, &["line_comment", "block_comment"]),
    (Attribute, &["attribute_item"]),
];

const RUBY: Table = &[
    (
        Function,
        &["method", "singleton_method", "block", "do_block", "lambda"],
    ),
    (Class, &["class", "module", "singleton_class"]),
    (Call, &["call", "super"]),
    (
        Loop,
        &["while", "until", "for", "while_modifier", "until_modifier"],
    ),
    (Try, &["begin"]),
    (Catch, &["rescue", "rescue_modifier"]),
    (Finally, &["ensure"]),
    (
        If,
        &[
            "if",
            "unless",
            "if_modifier",
            "unless_modifier",
            "elsif",
            "conditional",
            "when",
        ],
    ),
    (Assign, &["assignment", "operator_assignment"]),
    (Pair, &["pair"]),
    (Return, &["return"]),
    (Exit, &["break", "next"]),
    (Rerun, &["retry", "redo"]),
    (
        Text,
        &[
            "string_content",
            "heredoc_content",
            "simple_symbol",
            "hash_key_symbol",
        ],
    ),
    (Comment, &["comment"]),
];

const PHP: Table = &[
    (
        Function,
        &[
            "function_definition",
            "method_declaration",
            "anonymous_function",
            "arrow_function",
        ],
    ),
    (
        Class,
        &[
            "class_declaration",
            "trait_declaration",
            "interface_declaration",
            "anonymous_class",
        ],
    ),
    (
        Call,
        &[
            "function_call_expression",
            "member_call_expression",
            "nullsafe_member_call_expression",
            "scoped_call_expression",
            "object_creation_expression",
        ],
    ),
    (
        Loop,
        &[
            "for_statement",
            "foreach_statement",
            "while_statement",
            "do_statement",
        ],
    ),
    (Try, &["try_statement"]),
    (Catch, &["catch_clause"]),
    (Finally, &["finally_clause"]),
    (
        If,
        &["if_statement", "else_if_clause", "conditional_expression"],
    ),
    (
        Assign,
        &[
            "assignment_expression",
            "augmented_assignment_expression",
            "property_element",
            "const_element",
        ],
    ),
    (Pair, &["array_element_initializer", "argument"]),
    (Return, &["return_statement"]),
    (
        Exit,
        &["break_statement", "continue_statement", "throw_expression"],
    ),
    (Text, &["string_content", "nowdoc_string", "heredoc_body"]),
    (Comment, &["comment"]),
    (Attribute, &["attribute_list"]),
];
