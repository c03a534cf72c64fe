// The rules of tokenising on vocabularies small enough to work out by hand.
#include "text/tokenizer.hpp"

#include "unit/text/text_support.hpp"

using namespace decant_test;
using decant::ErrorCode;
using Ids = std::vector<Token>;

TEST_CASE("byte-level BPE merges by rank, leftmost first") {
  auto own = byte_level();
  const Token ab = own.merge("a", "b");
  const Token bc = own.merge("b", "c");
  const Token aa = own.merge("a", "a");
  const Token abc = own.merge("ab", "c");
  own.merges.push_back("a b");  // again: the first rank counts
  const auto t = own.make();
  CHECK(t->kind() == "gpt2/gpt-2");
  CHECK(ids(*t, "abc") == Ids{abc});  // ab (rank 0) before bc (rank 1), then ab c
  CHECK(ids(*t, "xbc") == Ids{'x', bc});
  CHECK(ids(*t, "aaa") == Ids{aa, 'a'});
  CHECK(ids(*t, "aab") == Ids{'a', ab});  // ab before aa
  CHECK(ids(*t, "ab bc") == Ids{ab, ' ', bc});
  CHECK(ids(*t, "") == Ids{});
  CHECK(text_of(*t, {abc, ' ', aa}) == "abc aa");
}

TEST_CASE("a merge of pieces that were merged before") {
  auto own = byte_level();
  const Token xy = own.merge("x", "y");
  const Token xyxy = own.merge("xy", "xy");
  const auto t = own.make();
  CHECK(ids(*t, "xyxyxy") == Ids{xyxy, xy});
  CHECK(ids(*t, "xyxyxyxyx") == Ids{xyxy, xyxy, 'x'});
}

TEST_CASE("bytes without a piece are dropped and their neighbours meet") {
  // tokenizers 0.23.3: BPE(vocab a, b, ab) encodes "axb" as [ab].
  OwnVocabulary own;
  own.v.model = "gpt2";
  own.v.pre = "gpt-2";
  own.add("a");
  own.add("b");
  const Token ab = own.merge("a", "b");
  const auto t = own.make();
  CHECK(ids(*t, "axb") == Ids{ab});
  CHECK(ids(*t, "xxx") == Ids{});
}

TEST_CASE("pieces that are not in GPT-2's characters are their own text") {
  auto own = byte_level();
  const Token plain = own.add("\xe6\xb1\x89");  // a Han character, no byte's character
  const Token spaced = own.add("\xc4\xa0t");    // U+0120 stands for the space
  const Token unused = own.add("never", TokenType::unused);
  const auto t = own.make();
  CHECK(t->piece_bytes(plain) == "\xe6\xb1\x89");
  CHECK(t->piece_bytes(spaced) == " t");
  CHECK(t->piece_bytes(unused).empty());
  CHECK(t->piece_bytes(-1).empty());
  CHECK(t->piece_bytes(static_cast<Token>(t->size())).empty());
  CHECK(ids(*t, "never") == Ids{'n', 'e', 'v', 'e', 'r'});
}

// llama.cpp ranks pairs of texts, whether or not they are pieces; a text that is none in the end is
// written byte by byte. Traced by hand.
TEST_CASE("merges that dangle are tolerated") {
  for (const char* merge : {"a", "", " ", "a ", " a", "zz yy", "a zz"}) {
    auto own = byte_level();
    own.merges.push_back(merge);
    const Token ab = own.merge("a", "b");
    CAPTURE(merge);
    CHECK(ids(*own.make(), "zab") == Ids{'z', ab});
  }
  auto own = byte_level();
  own.merges.push_back("x y");  // "xy" is no piece, but leads to one
  own.merges.push_back("xy z");
  const Token xyz = own.add("xyz");
  own.merges.push_back("\xc3\xa9 !");  // nor does this: U+00E9 stands for the byte 0xe9
  const auto t = own.make();
  CHECK(ids(*t, "xyz") == Ids{xyz});
  CHECK(ids(*t, "xyxyz") == Ids{'x', 'y', xyz});
  CHECK(ids(*t, "\xe9!") == Ids{0xe9, '!'});
}

TEST_CASE("whole pieces come before merges where the pre-tokenizer says so") {
  for (const bool llama : {false, true}) {
    auto own = byte_level(llama ? "llama-bpe" : "gpt-2");
    own.merge("b", "c");
    const Token abc = own.add("abc");  // no merge leads to it
    const auto t = own.make();
    CHECK(ids(*t, "abc") == (llama ? Ids{abc} : Ids{'a', abc - 1}));
  }
}

TEST_CASE("sentence pieces merge by score, leftmost first, with spaces inside") {
  auto own = sentence_piece();
  own.v.add_space_prefix = false;
  const Token a = own.add("a", TokenType::normal, -10);
  const Token b = own.add("b", TokenType::normal, -11);
  const Token ab = own.add("ab", TokenType::normal, -2);
  const Token ba = own.add("ba", TokenType::normal, -1);
  const Token sab = own.add(
      "\xe2\x96\x81"
      "ab",
      TokenType::normal, -3);
  const Token space = own.add("\xe2\x96\x81", TokenType::normal, -12);
  const Token aa = own.add("aa", TokenType::normal, -2);
  own.add("b ", TokenType::normal, 0);  // its space is no U+2581: texts never match it
  const auto t = own.make();
  CHECK(t->kind() == "llama");
  CHECK(ids(*t, "aba") == Ids{a, ba});
  CHECK(ids(*t, "abb") == Ids{ab, b});
  CHECK(ids(*t, " ab") == Ids{sab});
  CHECK(ids(*t, " ba") == Ids{space, ba});
  CHECK(ids(*t, "aab") == Ids{aa, b});  // equal scores: the left one
  CHECK(ids(*t,
            "b\xe2\x96\x81"
            "b") == Ids{b, space, b});  // U+2581 in a text is a space
  CHECK(ids(*t, "b ") == Ids{b, space});
  CHECK(text_of(*t, {sab, space, b}) == " ab b");
  CHECK(ids(*t, "<unk></s>") == Ids{0, 2});
}

TEST_CASE("what is no piece is written in byte pieces, and without those unknown") {
  auto own = sentence_piece();
  own.v.add_space_prefix = false;
  const Token a = own.add("a");
  {
    const auto t = own.make();
    CHECK(ids(*t, "a\xc3\xa9\xff") == Ids{a, 3 + 0xc3, 3 + 0xa9, 3 + 0xff});
    CHECK(text_of(*t, ids(*t,
                          "\xe2\x82"
                          "a\x80")) ==
          "\xe2\x82"
          "a\x80");
  }
  OwnVocabulary bare;  // sentencepiece 0.2.3: neighbouring unknown characters are one token
  bare.v.model = "llama";
  bare.v.add_space_prefix = false;
  bare.add("<unk>", TokenType::unknown);
  const Token b = bare.add("b");
  const auto t = bare.make();
  CHECK(ids(*t, "xybz") == Ids{0, b, 0});
}

TEST_CASE("a space goes in front of a text and after special tokens, if the file wants it") {
  for (const bool prefix : {true, false}) {
    auto own = sentence_piece();
    if (!prefix) own.v.add_space_prefix = false;  // absent: true
    const Token g = own.add("G", TokenType::normal, -5);
    const Token sg = own.add("\xe2\x96\x81G", TokenType::normal, -1);
    const Token space = own.add("\xe2\x96\x81", TokenType::normal, -9);
    const auto t = own.make();
    CHECK(ids(*t, "G") == (prefix ? Ids{sg} : Ids{g}));
    CHECK(ids(*t, " G") == (prefix ? Ids{space, sg} : Ids{sg}));
    CHECK(ids(*t, "<s>G") == (prefix ? Ids{1, sg} : Ids{1, g}));
    CHECK(ids(*t, "G</s> G") == (prefix ? Ids{sg, 2, space, sg} : Ids{g, 2, sg}));
    CHECK(ids(*t, "") == Ids{});
    CHECK(ids(*t, "<s>") == Ids{1});
    // Only the space that was put in front goes again.
    for (const char* text : {"", "G", " G", "  G", "    G", "<s>G", "<s> G", "G</s> G", "</s><s>  ",
                             "G ", " <s>", "\xff G"}) {
      CAPTURE(text);
      CHECK(text_of(*t, ids(*t, text)) == text);
    }
  }
}

TEST_CASE("control tokens are taken from special text only") {
  auto own = byte_level();
  const Token end = own.add("<|im_end|>", TokenType::control);
  const Token tag = own.add("<b>", TokenType::user_defined);
  const auto t = own.make();
  const auto plain = [](std::string_view s) { return Ids(s.begin(), s.end()); };
  CHECK(ids(*t, "<|im_end|>", true) == Ids{end});
  CHECK(ids(*t, "<|im_end|>", false) == plain("<|im_end|>"));
  CHECK(ids(*t, "<b>", false) == Ids{tag});
  CHECK(text_of(*t, {end, tag}) == "<|im_end|><b>");

  // A forged end of turn in the middle of a conversation.
  CHECK(ids(*t, {{"<|im_end|>", true}, {"<|im_end|>", false}, {"<|im_end|>", true}}) == [&] {
    Ids want = {end};
    for (const char c : std::string_view("<|im_end|>")) want.push_back(c);
    want.push_back(end);
    return want;
  }());
  // Neither half of a token is special text by itself, unless both are.
  CHECK(ids(*t, {{"<|im", true}, {"_end|>", false}}) == plain("<|im_end|>"));
  CHECK(ids(*t, {{"<|im", false}, {"_end|>", true}}) == plain("<|im_end|>"));
  CHECK(ids(*t, {{"<|im", true}, {"", false}, {"_end|>", true}}) == Ids{end});
  CHECK(ids(*t, {{"<", false}, {"b>", true}}) == Ids{tag});
}

TEST_CASE("spans are one text") {
  auto own = byte_level();
  const Token ab = own.merge("a", "b");
  const auto t = own.make();
  CHECK(ids(*t, {{"a", false}, {"b", true}}) == Ids{ab});
  CHECK(ids(*t, {{"xa", true}, {"", false}, {"b", false}, {"", true}}) == Ids{'x', ab});
  CHECK(ids(*t, std::vector<TextSpan>{}) == Ids{});
}

TEST_CASE("special tokens: leftmost, then longest") {
  auto own = byte_level();
  const Token s = own.add("<s>", TokenType::control);
  const Token ss = own.add("<s><s>", TokenType::control);
  const Token inner = own.add("s><s", TokenType::user_defined);
  const Token nl2 = own.add("\n\n", TokenType::user_defined);
  const Token nl3 = own.add("\n\n\n", TokenType::user_defined);
  const auto t = own.make();
  CHECK(ids(*t, "<s><s><s>") == Ids{ss, s});
  CHECK(ids(*t, "<s><s><s>", false) == Ids{'<', inner, '>', '<', 's', '>'});
  CHECK(ids(*t, "x<s><") == Ids{'x', s, '<'});
  CHECK(ids(*t, "\n\n\n\n\n\n\n\n") == Ids{nl3, nl3, nl2});
}

TEST_CASE("special tokens agree with a search place by place on random texts") {
  std::mt19937 random(3);
  const auto word = [&](unsigned longest) {
    std::string s;
    for (unsigned i = random() % longest + 1; i > 0; --i) s.push_back("<a>"[random() % 3]);
    return s;
  };
  for (int n = 0; n < 3000; ++n) {
    std::vector<decant::detail::SpecialTokens::Entry> lists[2];
    Token next = 0;
    for (auto& list : lists) {
      for (unsigned i = random() % 4; i > 0; --i) list.push_back({word(5), next++});
    }
    const decant::detail::SpecialTokens specials(lists[0], lists[1]);
    const std::string text = word(20);
    const std::size_t b = random() % (text.size() + 1);
    const std::size_t e = b + random() % (text.size() - b + 1);
    std::vector<decant::detail::SpecialTokens::Range> ranges;
    if (e > b) ranges.push_back({b, e});

    std::vector<std::pair<std::size_t, Token>> want, got;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t length = 0;
      Token token = -1;
      for (const int control : {0, 1}) {
        for (const auto& entry : lists[control]) {
          const std::size_t size = entry.text.size();
          if (size <= length || text.compare(at, size, entry.text) != 0) continue;
          if (control && (at < b || at + size > e)) continue;
          length = size;
          token = entry.token;
        }
      }
      if (token >= 0) want.push_back({at, token});
      at += token >= 0 ? length : 1;
    }
    for (const auto& match : specials.find(text, ranges)) got.push_back({match.begin, match.token});
    REQUIRE(got == want);
  }
}

TEST_CASE("the begin token: the file's word, else the tokenizer's habit") {
  auto spm = sentence_piece();
  CHECK(spm.make()->add_bos());
  CHECK(spm.make()->bos() == 1);
  spm.v.add_bos = false;
  CHECK_FALSE(spm.make()->add_bos());
  spm.v.add_bos = true;
  spm.v.bos.reset();
  CHECK_FALSE(spm.make()->add_bos());  // there is none to add

  auto bpe = byte_level("gpt-2");
  bpe.v.bos = 0;
  CHECK_FALSE(bpe.make()->add_bos());
  bpe.v.add_bos = true;
  CHECK(bpe.make()->add_bos());
  auto llama = byte_level("llama-bpe");
  llama.v.bos = 0;
  CHECK(llama.make()->add_bos());
}

TEST_CASE("what a text ends with: the end token if the file says so, BERT's separator always") {
  auto bpe = byte_level("gpt-2");
  bpe.v.eos = 7;
  CHECK_FALSE(bpe.make()->closing());
  bpe.v.add_eos = true;
  CHECK(bpe.make()->closing() == 7);
  bpe.v.eos.reset();
  CHECK_FALSE(bpe.make()->closing());  // there is none to add
  auto t5 = sentence_piece();
  t5.v.model = "t5";
  CHECK(t5.make()->closing() == 2);
  CHECK(t5.make()->add_bos() == false);
  auto bert = sentence_piece();
  bert.v.model = "bert";
  bert.v.cls = 1;
  bert.v.sep = 2;
  CHECK(bert.make()->bos() == 1);
  CHECK(bert.make()->add_bos());
  CHECK(bert.make()->closing() == 2);
}

// Gemma 4's form, by llama.cpp 11434's rules: characters merge, a run of newlines that is a piece
// is taken whole, what is no piece is written in byte pieces. Traced by hand.
TEST_CASE("BPE from characters") {
  auto own = sentence_piece();
  own.v.model = "gemma4";
  const Token a = own.add("a"), e = own.add("\xc3\xa9"), space = own.add("\xe2\x96\x81");
  const Token space_a = own.merge("\xe2\x96\x81", "a");
  const Token newlines = own.add("\n\n");
  const auto t = own.make();
  CHECK(t->kind() == "gpt2/gemma4");
  CHECK(t->add_bos());
  CHECK(ids(*t, "a a") == Ids{a, space_a});
  CHECK(ids(*t, "a\xe2\x96\x81\xc3\xa9") == Ids{a, space, e});
  CHECK(ids(*t, "a\n\na") == Ids{a, newlines, a});
  CHECK(ids(*t, "\n\n\n") == Ids{3 + '\n', 3 + '\n', 3 + '\n'});
  CHECK(ids(*t, "\xe6\xb1\x89\xff") == Ids{3 + 0xe6, 3 + 0xb1, 3 + 0x89, 3 + 0xff});
  CHECK(text_of(*t, {space_a, newlines, e}) == " a\n\n\xc3\xa9");
}

TEST_CASE("end tokens: the file's and those with known texts") {
  auto own = byte_level();
  own.v.eos = own.add("<stop>", TokenType::control);
  own.v.eot = own.add("<turn>", TokenType::control);
  const Token known = own.add("<|eot_id|>", TokenType::control);
  const Token spelled = own.add("<end_of_turn>", TokenType::normal);  // ordinary text
  const auto t = own.make();
  CHECK(t->is_end(*own.v.eos));
  CHECK(t->is_end(*own.v.eot));
  CHECK(t->is_end(known));
  CHECK_FALSE(t->is_end(spelled));
  CHECK_FALSE(t->is_end('a'));
  CHECK_FALSE(t->is_end(-1));
}

TEST_CASE("what is not supported names itself") {
  auto own = byte_level("deepseek-v9");
  auto t = Tokenizer::create(own.view());
  REQUIRE_FALSE(t);
  CHECK(t.error().code() == ErrorCode::unsupported);
  CHECK(t.error().message().find("deepseek-v9") != std::string_view::npos);
  own.v.model = "hybriddna";
  t = Tokenizer::create(own.view());
  REQUIRE_FALSE(t);
  CHECK(t.error().code() == ErrorCode::unsupported);
  CHECK(t.error().message().find("hybriddna") != std::string_view::npos);
}

TEST_CASE("vocabularies that contradict themselves are invalid") {
  const auto invalid = [](OwnVocabulary own, std::string_view says) {
    const auto t = Tokenizer::create(own.view());
    REQUIRE_FALSE(t);
    CHECK(t.error().code() == ErrorCode::invalid_file);
    CHECK(t.error().message().find(says) != std::string_view::npos);
  };
  auto no_scores = sentence_piece();
  no_scores.v.scores.clear();
  invalid(std::move(no_scores), "tokenizer.ggml.scores");
  for (const char* piece : {"<0x0g>", "<0x0>", "0x41", "", "<0x041>"}) {
    auto own = sentence_piece();
    own.add(piece, TokenType::byte);
    invalid(std::move(own), "byte piece 259");
  }
}

TEST_CASE("ids outside the vocabulary are refused whole") {
  const auto t = byte_level().make();
  for (const Token bad : {-1, 256, 0x7fffffff, -0x7fffffff - 1}) {
    std::string out = "kept";
    const auto status = t->detokenize(std::vector<Token>{'a', bad}, out);
    REQUIRE_FALSE(status);
    CHECK(status.error().code() == ErrorCode::invalid_argument);
    CHECK(out == "kept");
  }
}

TEST_CASE("texts of 2 GiB and more are refused before they are read") {
  const auto t = byte_level().make();
  const char byte = 'a';
  Ids out = {7};
  // Never dereferenced: the sizes alone decide.
  const TextSpan spans[] = {{{&byte, 1}, false}, {{&byte, decant::detail::kMaxTextBytes}, false}};
  const auto status = t->tokenize(spans, out);
  REQUIRE_FALSE(status);
  CHECK(status.error().code() == ErrorCode::invalid_argument);
  CHECK(out == Ids{7});
}

TEST_CASE("detokenising what was tokenised gives the text back") {
  auto bpe = byte_level("smollm");
  auto llama = byte_level("llama-bpe");
  auto spm = sentence_piece();
  spm.v.add_space_prefix = false;
  for (auto* own : {&bpe, &llama}) {
    own->merge("a", "b");
    own->merge("ab", "a");
    own->merge("\xc4\xa0", "a");
    own->merge("\xc3\x83", "\xc2\xa9");  // the two bytes of U+00E9
  }
  float score = 0;
  for (const char* piece : {"a", "b", "\xe2\x96\x81", "ab",
                            "\xe2\x96\x81"
                            "a",
                            "aba", "\xc3\xa9", "1 "}) {
    spm.add(piece, TokenType::normal, score -= 1);
  }
  for (auto* own : {&bpe, &llama, &spm}) {
    own->add("<|x|>", TokenType::control);
    own->add("\n\n", TokenType::user_defined);
    own->add("  ", TokenType::user_defined);
  }
  const char* const parts[] = {
      "a",    "b", " ",        "  ",   "\n",   "\t",           "1",     "23",
      "'s",   "!", "\xc3\xa9", "\xff", "\xe2", "\xe6\xb1\x89", "<|x|>", "\xf0\x9f\x94\xa5",
      "\x01", "ab"};
  std::mt19937 random(4);
  for (auto* own : {&bpe, &llama, &spm}) {
    const auto t = own->make();
    for (int n = 0; n < 40000; ++n) {
      std::string text;
      for (unsigned i = random() % 12; i > 0; --i) text += parts[random() % std::size(parts)];
      if (n % 8 == 0) text.push_back(static_cast<char>(random()));
      if (own == &spm && text.find("\xe2\x96\x81") != std::string::npos) continue;
      const std::size_t cut = random() % (text.size() + 1);
      const auto tokens = ids(*t, {{std::string_view(text).substr(0, cut), n % 2 == 0},
                                   {std::string_view(text).substr(cut), n % 3 == 0}});
      REQUIRE(text_of(*t, tokens) == text);
    }
  }
}

// Outcomes by hand, from `rstrip` in the model's tokenizer_config.json.
TEST_CASE("special tokens of Phi 3 take the spaces behind them") {
  OwnVocabulary own = sentence_piece();
  own.v.add_space_prefix = false;
  const Token user = own.add("<|user|>", TokenType::control);
  const Token end = own.add("<|endoftext|>", TokenType::control);
  const Token hi = own.add("hi"), newline = 3 + '\n', space = 3 + ' ';
  const std::string text = "<|user|>\n \xe3\x80\x80hi\n<|user|><|endoftext|>\nhi<s> hi<|user|>\n";
  CHECK(ids(*own.make(), "<|user|>\nhi") == Ids{user, newline, hi});
  own.v.phi3 = true;
  const auto t = own.make();
  CHECK(ids(*t, text) == Ids{user, hi, newline, user, end, newline, hi, 1, space, hi, user});
  CHECK(ids(*t, {{"<|user|>", true}, {" hi", false}}) == Ids{user, hi});
  CHECK(ids(*t, "<|user|> hi", false).size() > 3);
}
