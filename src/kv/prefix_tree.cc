#include "kv/prefix_tree.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace quire::kv {
namespace {

struct Node;

// Children of a node differ in their first page of tokens, so that is their key.
struct ByFirstPage {
  using is_transparent = void;
  int32_t page_tokens;

  static const int32_t* key(const int32_t* tokens) { return tokens; }
  static const int32_t* key(const std::unique_ptr<Node>& node);
  bool operator()(const auto& a, const auto& b) const {
    const int32_t *first = key(a), *second = key(b);
    return std::lexicographical_compare(first, first + page_tokens, second, second + page_tokens);
  }
};

struct Node {
  Node(Node* above, int32_t page_tokens, uint64_t time)
      : parent(above), children(ByFirstPage{page_tokens}), used(time) {}

  Node* parent;                       // null: the root of a salt, which has no pages
  const std::string* salt = nullptr;  // of a root: its key
  std::vector<int32_t> tokens;
  std::vector<PageId> pages;
  std::set<std::unique_ptr<Node>, ByFirstPage> children;
  uint64_t used;  // the clock's time of the last use, at least that of its children

  // Scratch of evictable_pages(): the children that the count of this number has found free.
  uint64_t count = 0;
  size_t free_children = 0;

  bool is_leaf() const { return parent && children.empty(); }
};

const int32_t* ByFirstPage::key(const std::unique_ptr<Node>& node) { return node->tokens.data(); }

// Leaves never tie: what one operation uses lies on one path.
struct ByUse {
  bool operator()(const Node* a, const Node* b) const { return a->used < b->used; }
};

}  // namespace

struct PrefixTree::Impl {
  explicit Impl(PagePool& p) : pool(p), page_tokens(p.page_size().tokens()) {}

  Node& root(std::string_view salt);
  void touch(Node& node);
  Node& split(Node& node, int64_t pages);
  int64_t common_pages(const Node& node, std::span<const int32_t> tokens) const;
  template <class Visit>
  Node& descend(Node& from, std::span<const int32_t> tokens, const Visit& visit);
  void attach(Node& node, std::span<const int32_t> tokens, std::span<const PageId> pages);
  int64_t free_tail(const Node& node) const;
  void drop_tail(Node& node, int64_t pages);
  Node* remove_leaf(Node& node);
  void audit_node(const Node& node) const;

  PagePool& pool;
  int32_t page_tokens;
  std::map<std::string, Node, std::less<>> roots;
  std::set<Node*, ByUse> leaves;  // least recently used first
  int32_t cached = 0;
  uint64_t clock = 0;
  uint64_t counts = 0;
};

Node& PrefixTree::Impl::root(std::string_view salt) {
  const auto found = roots.find(salt);
  if (found != roots.end()) return found->second;
  const auto made = roots.try_emplace(std::string(salt), nullptr, page_tokens, clock).first;
  made->second.salt = &made->first;
  return made->second;
}

void PrefixTree::Impl::touch(Node& node) {
  if (node.is_leaf()) leaves.erase(&node);
  node.used = clock;
  if (node.is_leaf()) leaves.insert(&node);
}

// The node's first `pages` pages become a node of their own above the rest, which is returned.
Node& PrefixTree::Impl::split(Node& node, int64_t pages) {
  Node& parent = *node.parent;
  auto lower = parent.children.extract(parent.children.find(node.tokens.data()));
  const int64_t cut = pages * page_tokens;
  auto upper = std::make_unique<Node>(&parent, page_tokens, node.used);
  upper->tokens.assign(node.tokens.begin(), node.tokens.begin() + cut);
  upper->pages.assign(node.pages.begin(), node.pages.begin() + pages);
  node.tokens.erase(node.tokens.begin(), node.tokens.begin() + cut);
  node.pages.erase(node.pages.begin(), node.pages.begin() + pages);
  node.parent = upper.get();
  upper->children.insert(std::move(lower));
  return **parent.children.insert(std::move(upper)).first;
}

int64_t PrefixTree::Impl::common_pages(const Node& node, std::span<const int32_t> tokens) const {
  const size_t length = std::min(node.tokens.size(), tokens.size());
  const auto end = std::mismatch(tokens.begin(), tokens.begin() + length, node.tokens.begin()).first;
  return (end - tokens.begin()) / page_tokens;
}

// Walks down as far as the tokens are cached, marking the way as used, and returns the last node. A node that the
// tokens leave midway is split there: its rest was not used.
template <class Visit>
Node& PrefixTree::Impl::descend(Node& from, std::span<const int32_t> tokens, const Visit& visit) {
  ++clock;
  Node* node = &from;
  while (std::ssize(tokens) >= page_tokens) {
    const auto child = node->children.find(tokens.data());
    if (child == node->children.end()) break;
    const int64_t common = common_pages(**child, tokens);
    node = common < std::ssize((*child)->pages) ? &split(**child, common) : child->get();
    touch(*node);
    visit(*node);
    tokens = tokens.subspan(node->tokens.size());
  }
  return *node;
}

// A leaf grows; below any other node the pages become a new leaf.
void PrefixTree::Impl::attach(Node& node, std::span<const int32_t> tokens, std::span<const PageId> pages) {
  Node* leaf = &node;
  std::unique_ptr<Node> fresh;
  if (!node.is_leaf()) {
    fresh = std::make_unique<Node>(&node, page_tokens, clock);
    leaf = fresh.get();
  }
  leaf->tokens.insert(leaf->tokens.end(), tokens.begin(), tokens.end());
  leaf->pages.insert(leaf->pages.end(), pages.begin(), pages.end());
  for (const PageId page : pages) pool.retain(page);
  cached += static_cast<int32_t>(pages.size());
  if (!fresh) return;
  node.children.insert(std::move(fresh));
  leaves.insert(leaf);
}

// How many pages at the node's end only the tree holds.
int64_t PrefixTree::Impl::free_tail(const Node& node) const {
  const auto shared = [&](PageId page) { return pool.references(page) > 1; };
  return std::find_if(node.pages.rbegin(), node.pages.rend(), shared) - node.pages.rbegin();
}

void PrefixTree::Impl::drop_tail(Node& node, int64_t pages) {
  const size_t kept = node.pages.size() - pages;
  for (size_t i = kept; i < node.pages.size(); ++i) pool.release(node.pages[i]);
  node.pages.resize(kept);
  cached -= static_cast<int32_t>(pages);
  if (kept) node.tokens.resize(kept * page_tokens);  // an empty node keeps its tokens, the key it is removed by
}

// Takes a leaf without pages out of the tree, and its root with the last of them. Returns the parent if that is a leaf
// now.
Node* PrefixTree::Impl::remove_leaf(Node& node) {
  Node& parent = *node.parent;
  leaves.erase(&node);
  parent.children.erase(parent.children.find(node.tokens.data()));
  if (!parent.parent && parent.children.empty())
    roots.erase(roots.find(*parent.salt));
  else if (parent.is_leaf())
    return *leaves.insert(&parent).first;
  return nullptr;
}

void PrefixTree::Impl::audit_node(const Node& node) const {
  check(!node.pages.empty(), "audit: a node without pages");
  check(node.tokens.size() == node.pages.size() * page_tokens, "audit: ", node.tokens.size(), " tokens on ",
        node.pages.size(), " pages of ", page_tokens);
  check(node.used <= clock && (!node.parent->parent || node.used <= node.parent->used), "audit: page ",
        node.pages.front(), " was used after the page before it");
  const auto listed = leaves.find(const_cast<Node*>(&node));
  check(node.is_leaf() == (listed != leaves.end() && *listed == &node), "audit: the node of page ", node.pages.front(),
        node.is_leaf() ? " is a leaf and not" : " is no leaf and", " among the leaves");
}

PrefixTree::PrefixTree(PagePool& pool) : impl_(std::make_unique<Impl>(pool)) {}
PrefixTree::~PrefixTree() { clear(); }

std::vector<PageId> PrefixTree::match(std::string_view salt, std::span<const int32_t> tokens) {
  std::vector<PageId> pages;
  const auto root = impl_->roots.find(salt);
  if (root == impl_->roots.end()) return pages;
  impl_->descend(root->second, tokens,
                 [&](const Node& node) { pages.insert(pages.end(), node.pages.begin(), node.pages.end()); });
  return pages;
}

std::vector<PrefixTree::Kept> PrefixTree::insert(std::string_view salt, std::span<const int32_t> tokens,
                                                 std::span<const PageId> pages) {
  const size_t whole = std::min(tokens.size() / impl_->page_tokens, pages.size());
  for (const PageId page : pages.first(whole)) impl_->pool.check_live(page);
  std::vector<Kept> kept;
  if (whole == 0) return kept;
  tokens = tokens.first(whole * impl_->page_tokens);
  int32_t index = 0;
  Node& end = impl_->descend(impl_->root(salt), tokens, [&](const Node& node) {
    for (const PageId page : node.pages) {
      if (page != pages[index]) kept.push_back({index, page});
      ++index;
    }
  });
  if (index < static_cast<int64_t>(whole))
    impl_->attach(end, tokens.subspan(int64_t{index} * impl_->page_tokens), pages.subspan(index, whole - index));
  return kept;
}

int32_t PrefixTree::evict(int32_t pages) {
  int64_t freed = 0;
  for (auto leaf = impl_->leaves.begin(); freed < pages && leaf != impl_->leaves.end();) {
    Node& node = **leaf++;
    const int64_t dropped = std::min(impl_->free_tail(node), pages - freed);
    impl_->drop_tail(node, dropped);
    freed += dropped;
    if (!node.pages.empty()) continue;
    Node* const parent = impl_->remove_leaf(node);
    // The parent is at least as recent as its child was, and perhaps the next in line.
    if (parent && (leaf == impl_->leaves.end() || parent->used < (*leaf)->used)) leaf = impl_->leaves.find(parent);
  }
  return static_cast<int32_t>(freed);
}

// Leaf by leaf, because the tree may be deep: a stack of calls would be too.
void PrefixTree::clear() {
  while (!impl_->leaves.empty()) {
    Node& node = **impl_->leaves.begin();
    impl_->drop_tail(node, std::ssize(node.pages));
    impl_->remove_leaf(node);
  }
}

int32_t PrefixTree::cached_pages() const { return impl_->cached; }

// Upwards from the leaves: a node counts once all its children were found free.
int32_t PrefixTree::evictable_pages() const {
  const uint64_t count = ++impl_->counts;
  int64_t pages = 0;
  for (Node* node : impl_->leaves) {
    while (node->parent) {
      const int64_t free = impl_->free_tail(*node);
      pages += free;
      Node& parent = *node->parent;
      if (free < std::ssize(node->pages)) break;
      if (parent.count != count) parent.free_children = 0;
      parent.count = count;
      if (++parent.free_children < parent.children.size()) break;
      node = &parent;
    }
  }
  return static_cast<int32_t>(pages);
}

void PrefixTree::audit() const {
  std::vector<const Node*> nodes;
  for (const auto& [salt, root] : impl_->roots) nodes.push_back(&root);
  std::vector<bool> seen(impl_->pool.pages(), false);
  int32_t pages = 0;
  while (!nodes.empty()) {
    const Node& node = *nodes.back();
    nodes.pop_back();
    if (node.parent) impl_->audit_node(node);
    for (const PageId page : node.pages) {
      impl_->pool.check_live(page);
      check(!seen[page.value], "audit: the tree has page ", page, " twice");
      seen[page.value] = true;
      ++pages;
    }
    for (const std::unique_ptr<Node>& child : node.children) {
      check(child->parent == &node, "audit: the node of page ", child->pages.front(), " has another parent");
      nodes.push_back(child.get());
    }
  }
  check(pages == impl_->cached, "audit: the tree has ", pages, " pages and counts ", impl_->cached);
}

}  // namespace quire::kv
