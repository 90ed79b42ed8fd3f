# The processing system of Zynq-7000: AMD PG082 for the parameters, UG585 for the ports.

proc add_processing_system {} {
    global settings
    set system [create_bd_cell -type ip -vlnv [newest processing_system7] $settings(system)]
    if {$settings(preset)} {
        apply_bd_automation -rule xilinx.com:bd_rule:processing_system7 \
            -config {make_external "FIXED_IO, DDR" apply_board_preset "1" Master "Disable" Slave "Disable"} $system
    } else {
        make_bd_intf_pins_external -name DDR [get_bd_intf_pins $system/DDR]
        make_bd_intf_pins_external -name FIXED_IO [get_bd_intf_pins $system/FIXED_IO]
    }
    set properties [list \
        CONFIG.PCW_USE_M_AXI_GP0 1 \
        CONFIG.PCW_USE_FABRIC_INTERRUPT 1 \
        CONFIG.PCW_IRQ_F2P_INTR 1 \
        CONFIG.PCW_EN_CLK0_PORT 1 \
        CONFIG.PCW_EN_RST0_PORT 1 \
        CONFIG.PCW_FPGA_FCLK0_ENABLE 1]
    for {set port 0} {$port < 4} {incr port} {
        lappend properties CONFIG.PCW_USE_S_AXI_HP$port [expr {$port < $settings(ports)}]
        if {$port < $settings(ports)} {
            lappend properties CONFIG.PCW_S_AXI_HP${port}_DATA_WIDTH $settings(port_bits)
        }
    }
    set_property -dict $properties $system
    return $system
}

# The ports are AXI3, whose bursts have 16 beats at most: a converter cuts the longer ones of AXI4.
proc connect_memory {system accelerator port clocked_name awake_name} {
    upvar $clocked_name clocked
    upvar $awake_name awake
    set converter [create_bd_cell -type ip -vlnv [newest axi_protocol_converter] memory_$port]
    set_property -dict [list CONFIG.SI_PROTOCOL AXI4 CONFIG.MI_PROTOCOL AXI3 CONFIG.TRANSLATION_MODE 2] $converter
    connect_bd_intf_net [get_bd_intf_pins $accelerator/m_axi_$port] [get_bd_intf_pins $converter/S_AXI]
    connect_bd_intf_net [get_bd_intf_pins $converter/M_AXI] [get_bd_intf_pins $system/S_AXI_HP$port]
    lappend clocked $system/S_AXI_HP${port}_ACLK $converter/aclk
    lappend awake $converter/aresetn
}

proc register_master {} {return M_AXI_GP0}
proc register_clock {} {return M_AXI_GP0_ACLK}
proc fabric_clock {} {return FCLK_CLK0}
proc fabric_reset {} {return FCLK_RESET0_N}
proc interrupt_input {} {return IRQ_F2P}

proc set_fabric_clock {mhz} {
    global settings
    set_property CONFIG.PCW_FPGA0_PERIPHERAL_FREQMHZ $mhz [get_bd_cells $settings(system)]
}

proc fabric_clock_mhz {} {
    global settings
    return [get_property CONFIG.PCW_ACT_FPGA0_PERIPHERAL_FREQMHZ [get_bd_cells $settings(system)]]
}
