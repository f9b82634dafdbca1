// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one file imports, and which modules it declares.

use std::collections::HashMap;

use syn::visit::{self, Visit};

use crate::tidy::test_items;

/// What is known of a module before its paths are resolved.
#[derive(Debug, Default)]
pub(super) struct Module {
    pub(super) file: String,
    /// What its paths name, before it is resolved.
    pub(super) paths: Vec<(Vec<String>, usize)>,
    /// What it names in other packages.
    pub(super) outside: Vec<(Vec<String>, usize)>,
    /// Fields and methods that it uses, and fields that it declares.
    pub(super) members: Vec<(String, usize)>,
    /// What it shows under another path: name, and the path of the original.
    pub(super) shows: HashMap<String, Vec<String>>,
    /// Methods and functions that it gives to types, traits aside: the type's name and theirs.
    pub(super) methods: Vec<(String, String)>,
    /// Those of its own type that a method calls on `self`, or by `Self::`.
    pub(super) calls: Vec<(String, String, usize)>,
}

/// Collects the paths of one file.
pub(super) struct Reader {
    /// The module that is being read; longer within a module that stands in the same file.
    pub(super) here: Vec<String>,
    pub(super) module: Module,
    /// Modules in files of their own, and where they say that these are.
    pub(super) children: Vec<(String, Option<String>)>,
    /// The type whose methods are being read.
    pub(super) type_of_self: Option<String>,
}

impl Reader {
    /// The full path of one that begins with `crate`, `self` or `super`; others lead to children or out of the package.
    fn full(&self, path: &[String]) -> Option<Vec<String>> {
        let mut at = match path.first()?.as_str() {
            "crate" => Vec::new(),
            "self" | "super" => self.here.clone(),
            _ => return None,
        };
        let supers = path.iter().take_while(|part| *part == "super").count();
        for _ in 0..supers {
            at.pop()?;
        }
        at.extend(path.iter().skip(supers.max(1)).cloned());
        Some(at)
    }

    fn name(&mut self, path: &[String], line: usize) {
        match self.full(path) {
            Some(full) => self.module.paths.push((full, line)),
            None if path.len() > 1 => self.module.outside.push((path.to_vec(), line)),
            None => {}
        }
    }

    fn member(&mut self, name: &proc_macro2::Ident) {
        let line = name.span().start().line;
        self.module.members.push((name.to_string(), line));
    }

    fn call(&mut self, method: &proc_macro2::Ident) {
        if let Some(own) = &self.type_of_self {
            let line = method.span().start().line;
            self.module
                .calls
                .push((own.clone(), method.to_string(), line));
        }
    }

    fn import(&mut self, tree: &syn::UseTree, before: &[String], shown: bool) {
        let mut path = before.to_vec();
        let at = match tree {
            syn::UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, &path, shown);
                return;
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(tree, &path, shown);
                }
                return;
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                if ident != "self" {
                    path.push(ident.to_string());
                }
                ident.span()
            }
            syn::UseTree::Glob(glob) => glob.star_token.span,
        };
        self.name(&path, at.start().line);
        if shown {
            let name = match tree {
                syn::UseTree::Rename(rename) => rename.rename.to_string(),
                _ => path.last().cloned().unwrap_or_default(),
            };
            // One without `crate` or the like begins at a child, or is of another package.
            let full = self
                .full(&path)
                .unwrap_or_else(|| self.here.iter().cloned().chain(path.clone()).collect());
            self.module.shows.insert(name, full);
        }
    }
}

/// Whether something is there for tests only.
fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| test_items::is_test(&a.meta))
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Use(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let before = self.type_of_self.take();
        if let syn::Type::Path(path) = &*item.self_ty {
            let name = path.path.segments.last().map(|last| last.ident.to_string());
            self.type_of_self = name;
        }
        if let (None, Some(own)) = (&item.trait_, &self.type_of_self) {
            for part in &item.items {
                if let syn::ImplItem::Fn(function) = part
                    && !is_test(&function.attrs)
                {
                    let name = function.sig.ident.to_string();
                    self.module.methods.push((own.clone(), name));
                }
            }
        }
        visit::visit_item_impl(self, item);
        self.type_of_self = before;
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        let Some((_, items)) = &item.content else {
            let path = item.attrs.iter().find_map(|attribute| {
                let syn::Meta::NameValue(meta) = &attribute.meta else {
                    return None;
                };
                let syn::Expr::Lit(syn::ExprLit {
                    lit: syn::Lit::Str(text),
                    ..
                }) = &meta.value
                else {
                    return None;
                };
                meta.path.is_ident("path").then(|| text.value())
            });
            self.children.push((name, path));
            return;
        };
        self.here.push(name);
        for item in items {
            self.visit_item(item);
        }
        self.here.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let shown = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, &[], shown);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path
            .segments
            .iter()
            .map(|part| part.ident.to_string())
            .collect();
        if let Some(second) = path.segments.get(1)
            && path.segments[0].ident == "Self"
        {
            self.call(&second.ident);
        }
        if let Some(first) = path.segments.first() {
            self.name(&parts, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_expr_field(&mut self, field: &'ast syn::ExprField) {
        if let syn::Member::Named(name) = &field.member {
            self.member(name);
        }
        visit::visit_expr_field(self, field);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.member(&call.method);
        if matches!(&*call.receiver, syn::Expr::Path(receiver) if receiver.path.is_ident("self")) {
            self.call(&call.method);
        }
        visit::visit_expr_method_call(self, call);
    }

    fn visit_field_pat(&mut self, field: &'ast syn::FieldPat) {
        if let syn::Member::Named(name) = &field.member {
            self.member(name);
        }
        visit::visit_field_pat(self, field);
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(name) = &field.ident {
            self.member(name);
        }
        visit::visit_field(self, field);
    }

    // `pub(in crate::coll)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    // The words of a macro are no syntax yet.
    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        let mut path: Vec<String> = Vec::new();
        let mut line = 0;
        let mut after_dot = false;
        let mut stack: Vec<proc_macro2::token_stream::IntoIter> =
            vec![item.tokens.clone().into_iter()];
        while let Some(tokens) = stack.last_mut() {
            let token = tokens.next();
            let is_dot = |token: &_| matches!(token, Some(proc_macro2::TokenTree::Punct(mark)) if mark.as_char() == '.');
            if let Some(proc_macro2::TokenTree::Ident(word)) = &token
                && after_dot
            {
                self.member(word);
            }
            after_dot = is_dot(&token);
            match token {
                Some(proc_macro2::TokenTree::Ident(word)) => {
                    if path.last().is_some_and(|last| last != ":") {
                        self.name(&std::mem::take(&mut path), line);
                    }
                    if path.is_empty() {
                        line = word.span().start().line;
                    }
                    path.retain(|part| part != ":");
                    path.push(word.to_string());
                }
                Some(proc_macro2::TokenTree::Punct(mark)) if mark.as_char() == ':' => {
                    path.push(":".to_owned());
                }
                Some(proc_macro2::TokenTree::Group(group)) => {
                    path.retain(|part| part != ":");
                    self.name(&std::mem::take(&mut path), line);
                    stack.push(group.stream().into_iter());
                }
                other => {
                    path.retain(|part| part != ":");
                    self.name(&std::mem::take(&mut path), line);
                    if other.is_none() {
                        stack.pop();
                    }
                }
            }
        }
    }
}
