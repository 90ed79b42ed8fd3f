// The registers that the assertions of a design became (edgedec.hw.emit.rtlil): each stays high after its failure.
#pragma once

#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace edgedec::sim {

// Finds them once, and says which one failed. A design without names for its signals, such as a netlist, has none.
class Contracts {
public:
    template <class Items>
    explicit Contracts(const Items& items) {
        for (const auto& [name, parts] : items.table) {
            const size_t last = name.rfind(' ') + 1;  // 0 after npos + 1: a name without modules before it
            if (name.compare(last, kStart.size(), kStart) || parts.size() != 1 || !parts[0].curr) continue;
            rules_.push_back({parts[0].curr, name.substr(0, last), name.substr(last + kStart.size())});
        }
    }

    size_t count() const { return rules_.size(); }

    // The module and the rule that it broke, or nothing.
    std::string broken() const {
        for (const auto& rule : rules_)
            if (*rule.failed & 1) return spaced(rule.module) + "breaks the rule: " + spaced(rule.text);
        return "";
    }

private:
    struct Rule {
        const uint32_t* failed;
        std::string module, text;
    };

    static std::string spaced(std::string text) {
        for (char& letter : text)
            if (letter == '_') letter = ' ';
        return text;
    }

    const std::string kStart = "violated_";
    std::vector<Rule> rules_;
};

}  // namespace edgedec::sim
