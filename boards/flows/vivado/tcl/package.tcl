# The accelerator as an IP block (IP-XACT): bus interfaces follow from the attributes of its Verilog, the rest is said here.

proc package_accelerator {here work} {
    global settings
    create_project -force packaging [file join $work packaging] -part $settings(part)
    set sources [list [file join $here rtl accelerator.v] [file join $here rtl accelerator_core.v]]
    add_files -norecurse $sources
    set_property top accelerator [current_fileset]
    update_compile_order -fileset sources_1
    ipx::package_project -root_dir [file join $work repository accelerator] -vendor $settings(vendor) \
        -library $settings(library) -taxonomy /UserIP -import_files -force
    set core [ipx::current_core]
    set_property vendor $settings(vendor) $core
    set_property library $settings(library) $core
    set_property name $settings(name) $core
    set_property version $settings(version) $core
    set_property display_name {edgedec accelerator} $core
    set_property description "Language model accelerator of configuration $settings(configuration)" $core
    set_property supported_families {zynq Production zynquplus Production} $core
    check_interfaces $core
    describe_registers $core
    describe_memory $core
    foreach parameter {CONFIGURATION_HASH ISA_VERSION RTLIL_HASH PORTS} {
        set_property enablement_value false [ipx::get_user_parameters $parameter -of_objects $core]
    }
    ipx::create_xgui_files $core
    ipx::update_checksums $core
    ipx::check_integrity $core
    ipx::save_core $core
    close_project
}

# Without one of them the block design could not be connected; better to say so here.
proc check_interfaces {core} {
    global settings
    set wanted [list clk rst_n interrupt s_axi]
    for {set port 0} {$port < $settings(ports)} {incr port} {
        lappend wanted m_axi_$port
    }
    foreach name $wanted {
        if {[ipx::get_bus_interfaces $name -of_objects $core] eq ""} {
            error "edgedec: Vivado found no interface $name in rtl/accelerator.v"
        }
    }
}

proc describe_registers {core} {
    global settings
    set bus [ipx::get_bus_interfaces s_axi -of_objects $core]
    set map [ipx::get_memory_maps s_axi -of_objects $core]
    if {$map eq ""} {
        set map [ipx::add_memory_map s_axi $core]
    }
    set_property slave_memory_map_ref s_axi $bus
    set block [lindex [ipx::get_address_blocks -of_objects $map] 0]
    if {$block eq ""} {
        set block [ipx::add_address_block reg0 $map]
    }
    set_property usage register $block
    set_property range $settings(registers_bytes) $block
    set_property width 32 $block
}

proc describe_memory {core} {
    global settings
    for {set port 0} {$port < $settings(ports)} {incr port} {
        set name m_axi_$port
        set space [ipx::get_address_spaces $name -of_objects $core]
        if {$space eq ""} {
            set space [ipx::add_address_space $name $core]
        }
        set_property master_address_space_ref $name [ipx::get_bus_interfaces $name -of_objects $core]
        set_property range $settings(memory_range) $space
        set_property width $settings(port_bits) $space
    }
}
